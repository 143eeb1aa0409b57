-- The waiting room: what it promises, kept where a lost Redis does not take it. Frozen once landed.

-- One row a match with a queue, whatever keeps the queue itself. epoch grows when that had to be made anew. The seed is
-- secret until the lobby is drawn. last_seat is exact where Postgres keeps the places, else about a second old.
create table waiting_rooms (
  match_id uuid primary key,
  epoch integer not null default 1,
  phase text not null default 'lobby' check (phase in ('lobby', 'drawing', 'open')),
  status text not null default 'paused' check (status in ('active', 'paused', 'closed')),
  rate_per_minute integer not null check (rate_per_minute >= 0),
  capacity integer not null check (capacity >= 0),
  seed text not null,
  lobby_size integer not null default 0,
  drawn_base_us bigint not null default 0,
  last_seat integer not null default 0,
  last_us bigint not null default 0,
  reason text,
  remaining_sectors jsonb,
  created_at timestamptz not null default clock_timestamp(),
  opened_at timestamptz,
  closed_at timestamptz
) with (fillfactor = 50);

-- The places themselves, only where there is no Redis. A lower score is nearer to the front.
create table waiting_places (
  match_id uuid not null,
  user_id text not null,
  seat integer not null,
  score bigint not null,
  seen_at timestamptz not null default clock_timestamp(),
  told boolean not null default false,
  session jsonb,
  primary key (match_id, user_id)
);
create index waiting_places_score on waiting_places (match_id, score);
create index waiting_places_seen on waiting_places (match_id, seen_at);

-- Every turn that was ever given, one a seat: the primary key is why nobody is let in twice for one place. freed: the
-- store knows that the window is over, and has let somebody else have its room.
create table turns (
  match_id uuid not null,
  seat integer not null,
  user_id text not null,
  session_token text not null,
  granted_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null,
  state text not null default 'open' check (state in ('open', 'used', 'window_timeout', 'left')),
  settled_at timestamptz,
  freed boolean not null default false,
  primary key (match_id, seat),
  check ((state = 'open') = (settled_at is null))
) with (fillfactor = 70);
create index turns_unfreed on turns (match_id) where not freed;
create index turns_settled on turns (match_id, settled_at);
