-- The event loader: sources with their cursors, whose turn it is, and the events. Frozen once landed.

-- A source and where it stands. definition: null when the source stands in a file. fence grows with each change of
-- hands, and whoever appends names the one it has. scan_id: how far the overlap window is read, where there is one.
-- rate: events of late, each weighing less by e for every minute it is old.
create table loader_sources (
  name text collate "C" primary key,
  definition jsonb,
  last_id bigint not null default 0 check (last_id >= 0),
  scan_id bigint,
  fence bigint not null default 0,
  owner text,
  paused_at timestamptz,
  loaded bigint not null default 0,
  rate double precision not null default 0,
  newest_id bigint,
  failures integer not null default 0,
  last_error text,
  failed_at timestamptz,
  ok_at timestamptz,
  event_at timestamptz,
  seen_at timestamptz,
  created_at timestamptz not null default clock_timestamp()
) with (fillfactor = 40);

-- Lock and gate of a source. Lost at a crash: a row that is missing counts as closed for the length of a lease, as
-- somebody may be in the middle of a request.
create unlogged table loader_turns (
  source text collate "C" primary key,
  token uuid,
  leased_until timestamptz,
  next_at timestamptz not null
) with (fillfactor = 20);

-- Ids within a source's overlap window, where it has one: what comes again is told by them.
create table loader_seen (
  source text collate "C" not null,
  id bigint not null,
  primary key (source, id)
);

-- One partition a day (UTC), made ahead by loader_partitions. The cursor and its fence make (source, id) unique over
-- all; in each partition an index does so as well. payload is json, not jsonb: what the source said, byte for byte.
-- loaded_at is the transaction's time: a default that changes from row to row would make COPY store them one by one.
create table loaded_events (
  source text collate "C" not null,
  id bigint not null,
  loaded_at timestamptz not null default now(),
  payload json not null
) partition by range (loaded_at);

-- Makes the partitions of today and the next days that are missing. Attached rather than created in place, which would
-- lock out those who append.
create function loader_partitions(days integer) returns void language plpgsql as $$
declare
  day date;
  part text;
begin
  perform pg_advisory_xact_lock(hashtext('loader_partitions'));
  for day in select (clock_timestamp() at time zone 'UTC')::date + i from generate_series(-1, days) as i loop
    part := 'loaded_events_' || to_char(day, 'YYYYMMDD');
    continue when to_regclass(part) is not null;
    execute format('create table %I (like loaded_events including defaults)', part);
    execute format('create unique index %I on %I (source, id)', part || '_id', part);
    execute format('alter table loaded_events attach partition %I for values from (%L) to (%L)',
      part, day::text || ' 00:00:00+00', (day + 1)::text || ' 00:00:00+00');
  end loop;
end $$;
select loader_partitions(3);

-- Moves a cursor, in the statement before the COPY of its events and in its transaction. A procedure, as COPY's client
-- bears no rows.
create procedure loader_move(
  source text, held_fence bigint, from_id bigint, to_id bigint, to_scan bigint, added integer, newest bigint)
language plpgsql set lock_timeout = '8s' as $$
begin
  update loader_sources s set
    last_id = to_id, scan_id = to_scan, loaded = loaded + added,
    rate = rate * exp(-extract(epoch from now() - coalesce(event_at, now())) / 60) + added,
    event_at = case when added > 0 then now() else event_at end,
    newest_id = coalesce(newest, newest_id), ok_at = now(), failures = 0
  where s.name = loader_move.source and s.fence = held_fence and s.last_id = from_id;
  if not found then
    raise exception 'the cursor of % is not ours', source using errcode = 'FL001';
  end if;
end $$;
