-- Seats, holds, orders, idempotency, outbox, inbox, users: sections 4 to 8. Frozen once landed.
-- Ids are UUID v7 made by the program; user ids are the identity provider's own text. Money is integer minor units.
-- Foreign keys never point at a hot row (an event, a reservation): the row lock they take would be shared by every hold.

create table events (
  id uuid primary key,
  name text not null,
  starts_at timestamptz not null,
  waiting_room boolean not null default false,
  created_at timestamptz not null default clock_timestamp()
);

-- section_no counts from 1, the best section first. A seated section numbers its seats from first_seat_no, row by row;
-- a standing one has neither rows nor seats, only its counter below.
create table sections (
  event_id uuid not null references events,
  section_no integer not null,
  name text not null,
  row_count integer,
  seats_per_row integer,
  first_seat_no integer,
  capacity integer not null check (capacity > 0),
  price_minor bigint not null check (price_minor >= 0),
  currency text not null check (currency ~ '^[A-Z]{3}$'),
  primary key (event_id, section_no),
  unique (event_id, name),
  check (num_nulls(row_count, seats_per_row, first_seat_no) in (0, 3)),
  check (row_count is null or row_count * seats_per_row = capacity)
);

-- One row a seat: it has one holder or none.
create table seats (
  event_id uuid not null,
  seat_no integer not null,
  section_no integer not null,
  label text not null,
  state text not null default 'free' check (state in ('free', 'held', 'sold')),
  reservation_id uuid,
  primary key (event_id, seat_no),
  foreign key (event_id, section_no) references sections,
  check ((state = 'free') = (reservation_id is null))
) with (fillfactor = 70);
create index seats_free on seats (event_id, seat_no) where state = 'free';

create table standing_sections (
  event_id uuid not null,
  section_no integer not null,
  capacity integer not null,
  held integer not null default 0,
  sold integer not null default 0,
  primary key (event_id, section_no),
  foreign key (event_id, section_no) references sections,
  check (held >= 0 and sold >= 0 and held + sold <= capacity)
) with (fillfactor = 10);

-- version counts the state changes of a reservation: it is the sequence of its events.
create table reservations (
  id uuid primary key,
  event_id uuid not null,
  user_id text not null,
  section_no integer not null,
  quantity integer not null check (quantity > 0),
  seat_nos integer[],
  state text not null default 'held' check (state in ('held', 'confirmed', 'cancelled', 'expired')),
  version integer not null default 1,
  created_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null,
  settled_at timestamptz,
  check (seat_nos is null or cardinality(seat_nos) = quantity),
  check ((state = 'held') = (settled_at is null))
);
create index reservations_due on reservations (expires_at) where state = 'held';
create index reservations_user on reservations (user_id);

create table orders (
  id uuid primary key,
  reservation_id uuid not null unique,
  event_id uuid not null,
  user_id text not null,
  quantity integer not null check (quantity > 0),
  total_minor bigint not null check (total_minor >= 0),
  currency text not null,
  created_at timestamptz not null default clock_timestamp()
);
create index orders_user on orders (user_id);

-- One ticket a seat, held by a constraint that does not know of seats.state.
create table tickets (
  id uuid primary key,
  order_id uuid not null,
  event_id uuid not null,
  section_no integer not null,
  seat_no integer,
  code text not null unique,
  created_at timestamptz not null default clock_timestamp(),
  unique (event_id, seat_no)
);
create index tickets_order on tickets (order_id);

-- A finished answer, written in the transaction of its effect and kept 48 h.
create table idempotency_records (
  key text primary key,
  fingerprint text not null,
  status integer not null,
  headers jsonb not null,
  body text not null,
  created_at timestamptz not null default clock_timestamp()
);
create index idempotency_records_created on idempotency_records using brin (created_at) with (autosummarize = on);

-- Who is at work on a key. Lost at a crash, which is right: so is the work.
create unlogged table idempotency_locks (
  key text primary key,
  fingerprint text not null,
  token uuid not null,
  locked_until timestamptz not null
);

create unlogged table rate_limits (
  subject text not null,
  minute bigint not null,
  count integer not null,
  primary key (subject, minute)
) with (fillfactor = 50);
create index rate_limits_minute on rate_limits (minute);

-- A write asked for with Prefer: respond-async. It ran when status is set, in the transaction of its effect.
create table commands (
  id uuid primary key,
  user_id text,
  method text not null,
  path text not null,
  body jsonb,
  request_id text,
  created_at timestamptz not null default clock_timestamp(),
  finished_at timestamptz,
  status integer,
  headers jsonb,
  response text
);

-- Append only, read in the order of (txid, id) below the oldest transaction still writing: an id order is not a commit
-- order. slot is a hash of the aggregate, so one relay at a time reads an aggregate. relayed rows lie behind the cursor.
create table outbox (
  slot integer not null,
  txid xid8 not null default pg_current_xact_id(),
  id bigint generated always as identity,
  message_id uuid not null,
  type text not null,
  subject text not null,
  sequence integer not null,
  data jsonb not null,
  request_id text,
  created_at timestamptz not null default clock_timestamp(),
  primary key (slot, txid, id)
);

create table outbox_cursors (
  slot integer primary key,
  txid xid8 not null default '0',
  id bigint not null default 0,
  relayed bigint not null default 0
) with (fillfactor = 10);
insert into outbox_cursors (slot) select generate_series(0, 15);

create table inbox_processed (
  consumer text not null,
  message_id uuid not null,
  processed_at timestamptz not null default clock_timestamp(),
  primary key (consumer, message_id)
);
create index inbox_processed_at on inbox_processed using brin (processed_at) with (autosummarize = on);

create table users (
  id text primary key,
  email text,
  locale text not null default 'en',
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp()
);

-- Where a user's pushes go: an FCM registration token or a Firebase installation id.
create table devices (
  user_id text not null references users on delete cascade,
  kind text not null check (kind in ('token', 'fid')),
  value text not null,
  created_at timestamptz not null default clock_timestamp(),
  primary key (kind, value)
);
create index devices_user on devices (user_id);

-- Until when a user of the waiting room may buy.
create table purchase_windows (
  event_id uuid not null,
  user_id text not null,
  session_token text not null,
  expires_at timestamptz not null,
  primary key (event_id, user_id)
);

create table quotas (
  id uuid primary key,
  event_id uuid not null,
  user_id text not null,
  quantity integer not null check (quantity > 0),
  expires_at timestamptz,
  created_at timestamptz not null default clock_timestamp()
);

-- A provider's event id seen once does nothing the second time.
create table webhook_events (
  provider text not null,
  id text not null,
  payload jsonb not null,
  received_at timestamptz not null default clock_timestamp(),
  primary key (provider, id)
);
