-- The relay over a broker across the network: it leases slots of the outbox, publishes with no transaction open, and
-- moves a slot's cursor as long as the lease is its own. Frozen once landed.

-- lease_no fences: it grows with each change of hands, and a settlement names the one it was made under.
alter table outbox_cursors
  add column leased_by uuid,
  add column leased_until timestamptz,
  add column lease_no bigint not null default 0;

-- The relays that are alive: each takes its share of the slots.
create table outbox_relays (
  id uuid primary key,
  seen_at timestamptz not null default clock_timestamp()
);

-- What the broker refused, and the later events of the same subject, in the order (txid, id). The first of a subject is
-- tried again at next_at; the others have none and wait for it. The event is kept whole, as the outbox is pruned.
create table outbox_aside (
  slot integer not null,
  subject text not null,
  txid xid8 not null,
  id bigint not null,
  event jsonb not null,
  type text not null generated always as (event->>'type') stored,
  attempts integer not null default 0,
  next_at timestamptz,
  primary key (slot, subject, txid, id)
);
create index outbox_aside_next on outbox_aside (type, slot, next_at) where next_at is not null;

-- The next events of slots after their positions, below the oldest transaction still writing, by the primary key and in
-- its order, the first of each and more up to bytes_max of data: the planner settings keep the plan where statistics are those of an empty table (db/outbox.ts, readByKey).
create function read_outbox(slots integer[], txids xid8[], ids bigint[], slot_max integer,
  bytes_max integer)
returns setof outbox
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
begin
  return query
    select (e.o).* from unnest(slots, txids, ids) as t (slot, txid, id) cross join lateral (
      select r.o, sum(octet_length((r.o).data::text)) over (order by r.txid, r.id
        rows between unbounded preceding and 1 preceding) as before
      from (
        select o, o.txid, o.id from outbox o
        where o.slot = t.slot and (o.txid, o.id) > (t.txid, t.id)
          and o.txid < pg_snapshot_xmin(pg_current_snapshot())
        order by o.txid, o.id limit slot_max
      ) r
    ) e
    where e.before is null or e.before < bytes_max;
end $$;

-- Whether there is anything after the positions, also what cannot be read yet.
create function outbox_waits(slots integer[], txids xid8[], ids bigint[]) returns boolean
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
begin
  return exists (
    select from unnest(slots, txids, ids) as t (slot, txid, id)
    where exists (select from outbox o where o.slot = t.slot and (o.txid, o.id) > (t.txid, t.id)));
end $$;
