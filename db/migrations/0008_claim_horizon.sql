-- A claim asks what is in hand only for what may be: a job under the id of one in hand was sent, or retried by an operator,
-- after that one was taken, and is due no earlier. Over a backlog nothing is asked (measured with 5,000 in hand: 26 µs a
-- job claimed, this way 14). So what is sent is due from the statement that sends it, not from its transaction's
-- beginning; a second is left for a statement that waits between its clock and its rows. Frozen once landed.

-- claim_batch of 0004_claims.sql, but for that.
create or replace function claim_batch(queue_name text, batch_max integer, active_max integer, keep boolean,
  bytes_max bigint default 16777216)
returns table (claim bigint, place integer, id uuid, data jsonb, retry_count integer, retry_limit integer,
  priority integer, created_ms float8)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
  asked_at timestamptz := clock_timestamp();
  first_taken_at timestamptz;
begin
  if exists (select from paused_queues p where p.queue = queue_name) then return; end if;
  if active_max is not null then
    perform pg_advisory_xact_lock(hashtext('claim_jobs'), hashtext(queue_name));
    batch_max := least(batch_max, active_max
      - (select count(*)::int from pgboss.job j where j.name = queue_name and j.state = 'active')
      - (select coalesce(sum(bit_count(~c.settled)), 0)::int from claims c where c.queue = queue_name));
    if batch_max <= 0 then return; end if;
  end if;
  select min(c.taken_at) - interval '1 s' into first_taken_at from claims c where c.queue = queue_name;
  return query
    with due as materialized (
      select j.ctid as at, coalesce(pg_column_size(j.data), 0) as size from pgboss.job j
      where j.name = queue_name and j.state < 'active' and not j.blocked and j.start_after <= now()
        -- A hashed subplan: nothing of it is built unless a row needs it.
        and (first_taken_at is null or j.start_after < first_taken_at or j.id not in (
          select u.id from claims c cross join lateral unnest(c.ids) with ordinality as u (id, place)
          where c.queue = queue_name and get_bit(c.settled & ~c.finished, u.place::int - 1) = 0))
      order by j.priority desc, j.created_on limit batch_max for update of j skip locked),
    bounded as materialized (
      select d.at, sum(d.size) over (rows unbounded preceding) - d.size as before from due d),
    taken as materialized (
      delete from pgboss.job j
      where j.name = queue_name and j.ctid = any(array(select b.at from bounded b where b.before < bytes_max))
      returning j.id, j.data, j.retry_count + (j.started_on is not null)::int as retry_count, j.retry_limit,
        j.priority, j.created_on,
        case when num_nonnulls(j.singleton_key, j.singleton_on, j.group_id, j.group_tier, j.source_id,
            j.source_root_id, j.trace_context, j.upsert_by_key) > 0
          or j.blocking or j.policy <> 'standard' then to_jsonb(j) end as origin),
    placed as materialized (
      select row_number() over ()::int as place, t.* from taken t
      -- Not exists(), which the planner may answer by reading all that is finished.
      where not keep or (select 1 from finished_jobs f where f.queue = queue_name and f.id = t.id limit 1) is null),
    kept as (
      insert into claims (queue, taken_at, ids, payloads, retry_counts, retry_limits, priorities, created_ats, origins,
        settled, finished)
      select queue_name, asked_at, array_agg(p.id), array_agg(p.data), array_agg(p.retry_count), array_agg(p.retry_limit),
        array_agg(p.priority), array_agg(p.created_on), array_agg(p.origin), repeat('0', count(*)::int)::bit varying,
        repeat('0', count(*)::int)::bit varying
      from placed p having count(*) > 0
      returning claims.id)
    select k.id, p.place, p.id, p.data, p.retry_count, p.retry_limit, p.priority,
      1000 * date_part('epoch', p.created_on)
    from placed p cross join kept k;
end $$;

-- send_jobs of 0004_claims.sql, but for that.
create or replace function send_jobs(queue_name text, ids uuid[], payloads text[], delays float8[], priorities integer[],
  named boolean)
returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
  q record;
  sent_at timestamptz := clock_timestamp();
begin
  select retry_limit, retry_delay, retry_backoff, retry_delay_max, expire_seconds, deletion_seconds, dead_letter,
    heartbeat_seconds, policy, retention_seconds * interval '1 s' as kept into q
  from pgboss.queue where name = queue_name;
  if not found then raise 'the queue "%" does not exist: run `fleet migrate`', queue_name; end if;
  insert into pgboss.job (id, name, data, priority, retry_limit, retry_delay, retry_backoff, retry_delay_max,
    expire_seconds, deletion_seconds, dead_letter, heartbeat_seconds, policy, start_after, keep_until)
  select u.id, queue_name, u.payload::jsonb, u.priority, q.retry_limit, q.retry_delay, q.retry_backoff,
    q.retry_delay_max, q.expire_seconds, q.deletion_seconds, q.dead_letter, q.heartbeat_seconds, q.policy,
    sent_at + u.delay * interval '1 ms', sent_at + u.delay * interval '1 ms' + q.kept
  from unnest(ids, payloads, delays, priorities) as u (id, payload, delay, priority)
  where not named or (select 1 from finished_jobs f where f.queue = queue_name and f.id = u.id limit 1) is null
  on conflict do nothing;
end $$;
