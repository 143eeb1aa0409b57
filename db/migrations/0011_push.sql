-- Rates that rise slowly: how much of its full rate a bucket may give now, shared by all instances. Google asks senders of
-- pushes to go from nothing to their full rate over a minute. Frozen once landed.

create table rate_ramps (
  name text primary key,
  -- Share of the full rate, 0 to 1.
  level float8 not null check (level between 0 and 1),
  changed_at timestamptz not null,
  -- When somebody last wanted more than he was given.
  pressed_at timestamptz not null
);
