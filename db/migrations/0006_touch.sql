-- What a worker's sign of life tells the worker: which of the jobs it has in hand are its own no more. Frozen once landed.

-- touch_jobs (0003_jobs.sql, still called by the code before this) with an answer: the places, from 1, of the jobs that
-- somebody cancelled, settled or took over. What is locked is being settled just now and is left alone: two statements
-- that lock several jobs each, in two orders, would wait for each other.
create function show_life(queue_name text, ids uuid[], retry_counts integer[])
returns table (place bigint, cancelled boolean)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
begin
  -- By ctid as in claim_jobs.
  with held as materialized (
    select j.ctid as at from unnest(ids, retry_counts) as d (id, retry_count)
    join pgboss.job j on j.name = queue_name and j.id = d.id and j.retry_count = d.retry_count
      and j.state::text = 'active'
    for no key update of j skip locked)
  update pgboss.job j set heartbeat_on = now()
  where j.name = queue_name and j.ctid = any(array(select h.at from held h));
  return query
    select d.place, coalesce(j.state::text = 'cancelled', false)
    from unnest(ids, retry_counts) with ordinality as d (id, retry_count, place)
    left join pgboss.job j on j.name = queue_name and j.id = d.id
    where j.id is null or j.retry_count <> d.retry_count or j.state::text <> 'active';
end $$;
