-- Flags that switch off what calls a vendor, alerts of what went wrong, and payments. Frozen once landed.

-- A flag without a row is on. Changed by a person, or by the circuit of its vendor (is_auto): what a person switched off
-- stays off whatever the circuit does.
create table flags (
  name text primary key,
  enabled boolean not null,
  is_auto boolean not null,
  changed_by text not null,
  reason text not null,
  changed_at timestamptz not null default clock_timestamp()
);

-- Each change of a flag, for whoever asks who it was.
create table flag_changes (
  id bigint generated always as identity primary key,
  name text not null,
  enabled boolean not null,
  is_auto boolean not null,
  changed_by text not null,
  reason text not null,
  changed_at timestamptz not null default clock_timestamp()
);
create index flag_changes_name on flag_changes (name, id);

-- Dead letters that nobody was told of yet. Those of before are old news. A mark, not a cursor: an id or a time of making
-- is no order of commits, and what is committed late must not be passed over.
alter table job_audits add column noticed_at timestamptz;
update job_audits set noticed_at = clock_timestamp();
create index job_audits_unnoticed on job_audits (queue) where noticed_at is null;

-- When the dead letters of a queue were last told of.
create table dead_letter_notices (
  queue text primary key,
  told_at timestamptz not null
);

-- Who asked to be left alone, over all instances, and until when.
create table rests (
  name text primary key,
  until_at timestamptz not null
);

-- One row a payment that ended, well or not: what was taken has an order or is due back, never both. reservation_id is
-- what the payment says, which may be anything; cancelled: it failed, and gave the places back.
create table payments (
  provider text not null,
  id text not null,
  state text not null check (state in ('confirmed', 'refund_due', 'failed')),
  reservation_id text not null,
  amount_minor bigint,
  currency text,
  order_id uuid,
  reason text,
  cancelled boolean not null default false,
  settled_at timestamptz not null default clock_timestamp(),
  primary key (provider, id),
  check ((state = 'confirmed') = (order_id is not null)),
  check (state = 'failed' or (amount_minor is not null and currency is not null))
);
-- An order is paid once.
create unique index payments_order on payments (order_id) where order_id is not null;
create index payments_reservation on payments (reservation_id);
