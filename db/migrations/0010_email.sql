-- E-mail: what was handed to a provider, who gets none, which providers are away, and rates in evenly spaced slots.
-- Frozen once landed.

-- A rate without bursts: the moment at which the next one may begin, shared by all instances.
create table rate_slots (
  name text primary key,
  next_at timestamptz not null
) with (fillfactor = 10);

-- Takes up to `want` of the next slots, none later than `ahead_ms` from now: what is reserved by a process that dies is
-- lost, and no more than that. wait_ms: until the first of them; when there is none, until it is worth asking again. A
-- clock that was set back does not stop the rate.
create function reserve_slots(slot_name text, per_second float8, want integer, ahead_ms float8)
returns table (granted integer, wait_ms float8)
language plpgsql
as $$
declare
  at timestamptz;
  instant timestamptz;
  until_ms float8;
begin
  loop
    select s.next_at into at from rate_slots s where s.name = slot_name for update;
    exit when found;
    insert into rate_slots (name, next_at) values (slot_name, clock_timestamp()) on conflict do nothing;
  end loop;
  -- After the row is ours: who waited for it must not count from before.
  instant := clock_timestamp();
  until_ms := greatest(0, extract(epoch from at - instant)::float8 * 1000);
  if until_ms > ahead_ms + 1000 / per_second + 1000 then
    until_ms := 0;
  end if;
  if until_ms > ahead_ms then
    return query select 0, until_ms - ahead_ms;
    return;
  end if;
  granted := greatest(0, least(want, floor((ahead_ms - until_ms) / 1000 * per_second)::integer + 1));
  if granted > 0 then
    update rate_slots set next_at = instant + (until_ms / 1000 + granted / per_second) * interval '1 s'
    where name = slot_name;
  end if;
  return query select granted, until_ms;
end $$;

-- What was handed to which provider, written before it is sent. `handed`: it may be there, nobody knows; `sent`: it is;
-- `withdrawn`: it is not; `given_up`: nobody could find out, a person decides. hands counts and fences.
create table email_sends (
  job_id text primary key,
  provider text not null,
  state text not null default 'handed' check (state in ('handed', 'sent', 'withdrawn', 'given_up')),
  hands integer not null default 1,
  handed_at timestamptz not null default clock_timestamp()
) with (fillfactor = 70);
create index email_sends_handed_at on email_sends (handed_at);

-- Addresses that get no mail, as domain/emails.ts writes them.
create table email_suppressions (
  address text primary key,
  reason text not null check (reason in ('bounce', 'complaint', 'unsubscribe', 'manual')),
  source text not null,
  created_at timestamptz not null default clock_timestamp()
);

-- Whoever is called over the network and is away: a row, so that all instances stop together, and one of them tries.
create table circuits (
  name text primary key,
  is_open boolean not null,
  why text not null,
  -- How often it was tried in vain since it opened.
  tries integer not null default 0,
  opened_at timestamptz not null default clock_timestamp(),
  probe_at timestamptz not null
);

-- Each opening and closing, once.
create table circuit_changes (
  id bigint generated always as identity primary key,
  name text not null,
  code text not null,
  why text not null,
  changed_at timestamptz not null default clock_timestamp()
);

create index webhook_events_received_at on webhook_events (received_at);
