-- What workers have in hand, and what is done. A claim takes its jobs out of the queue's table and keeps them here, in one
-- row however many they are: a queue's table has a dozen indexes, and to mark each job there as active and then as done
-- writes most of them twice (measured: 39 µs of a server's processor a job, this way 9). Those that fail, are given back,
-- are cancelled or whose worker died go back into pg-boss's table, in the state they are in. Frozen once landed.

create table claims (
  id bigint generated always as identity primary key,
  queue text not null,
  taken_at timestamptz not null default clock_timestamp(),
  -- The last sign of life of the worker.
  seen_at timestamptz not null default clock_timestamp(),
  -- One element a job, all in one order, from 1.
  ids uuid[] not null,
  payloads jsonb[] not null,
  -- Attempts before this one.
  retry_counts integer[] not null,
  retry_limits integer[] not null,
  priorities integer[] not null,
  created_ats timestamptz[] not null,
  -- The row as it was where it has what few have (a singleton key, where it came from, who waits for it); else null.
  origins jsonb[] not null,
  -- A bit a job: 1 when it is in hand no more.
  settled bit varying not null,
  -- A bit a job: 1 when it is done, to be kept, and not in finished_jobs yet; and when the others went there.
  finished bit varying not null,
  moved_at timestamptz not null default clock_timestamp()
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
  toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000);
-- Settling writes the row again, never these: compressing them would cost more than it saves.
alter table claims alter ids set storage external, alter payloads set storage external,
  alter retry_counts set storage external, alter retry_limits set storage external,
  alter priorities set storage external, alter created_ats set storage external,
  alter origins set storage external, alter settled set storage main, alter finished set storage main;
create index claims_queue on claims (queue);

-- What is done, of the queues that keep it for people to look at.
create table finished_jobs (
  queue text not null,
  id uuid not null,
  data jsonb,
  -- Attempts, this one included, and how many it could have had.
  attempts integer not null,
  attempts_max integer not null,
  priority integer not null,
  created_at timestamptz not null,
  started_at timestamptz not null,
  finished_at timestamptz not null default now(),
  primary key (queue, id)
);
-- Not by queue: whatever the statistics say, an id is then looked up by the primary key.
create index finished_jobs_at on finished_jobs (finished_at);

-- Each function carries its planner settings, as those of 0003_jobs.sql do.

-- What is in hand now, and what is done and not in finished_jobs yet.
create function jobs_in_hand(queue_names text[])
returns table (claim bigint, queue text, done boolean, id uuid, data jsonb, retry_count integer, retry_limit integer,
  priority integer, created_on timestamptz, started_on timestamptz, heartbeat_on timestamptz)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off
as $$
begin
  return query
    select c.id, c.queue, get_bit(c.finished, u.place::int - 1) = 1, u.id, u.data, u.retry_count, u.retry_limit,
      u.priority, u.created_at, c.taken_at, c.seen_at
    from claims c cross join lateral unnest(c.ids, c.payloads, c.retry_counts, c.retry_limits, c.priorities,
      c.created_ats) with ordinality as u (id, data, retry_count, retry_limit, priority, created_at, place)
    where c.queue = any(queue_names)
      and (get_bit(c.settled, u.place::int - 1) = 0 or get_bit(c.finished, u.place::int - 1) = 1);
end $$;

-- Up to batch_max jobs that are due, by job_i11 (name, priority, created_on, start_after), skipping what others claim.
-- None of a paused queue. With active_max no more than that are in hand at once: claims of the queue then take turns.
-- No more than bytes_max of payloads, but one. A job that was sent again under the id of one in hand waits for that one,
-- and is dropped when that is kept as finished.
create function claim_batch(queue_name text, batch_max integer, active_max integer, keep boolean,
  bytes_max bigint default 16777216)
returns table (claim bigint, place integer, id uuid, data jsonb, retry_count integer, retry_limit integer,
  priority integer, created_ms float8)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off
as $$
begin
  if exists (select from paused_queues p where p.queue = queue_name) then return; end if;
  if active_max is not null then
    perform pg_advisory_xact_lock(hashtext('claim_jobs'), hashtext(queue_name));
    batch_max := least(batch_max, active_max
      - (select count(*)::int from pgboss.job j where j.name = queue_name and j.state = 'active')
      - (select coalesce(sum(bit_count(~c.settled)), 0)::int from claims c where c.queue = queue_name));
    if batch_max <= 0 then return; end if;
  end if;
  return query
    with due as materialized (
      select j.ctid as at, coalesce(pg_column_size(j.data), 0) as size from pgboss.job j
      where j.name = queue_name and j.state < 'active' and not j.blocked and j.start_after <= now()
        and j.id not in (
          select u.id from claims c cross join lateral unnest(c.ids) with ordinality as u (id, place)
          where c.queue = queue_name and get_bit(c.settled & ~c.finished, u.place::int - 1) = 0)
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
      insert into claims (queue, ids, payloads, retry_counts, retry_limits, priorities, created_ats, origins, settled,
        finished)
      select queue_name, array_agg(p.id), array_agg(p.data), array_agg(p.retry_count), array_agg(p.retry_limit),
        array_agg(p.priority), array_agg(p.created_on), array_agg(p.origin), repeat('0', count(*)::int)::bit varying,
        repeat('0', count(*)::int)::bit varying
      from placed p having count(*) > 0
      returning claims.id)
    select k.id, p.place, p.id, p.data, p.retry_count, p.retry_limit, p.priority,
      1000 * date_part('epoch', p.created_on)
    from placed p cross join kept k;
end $$;

-- Rows of pg-boss's table from the marked jobs of a claim. A row that was sent under the same id meanwhile is this job.
create function put_back(claim_id bigint, places bit varying, as_state text, delay_ms float8 default 0)
returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off
as $$
begin
  insert into pgboss.job as j (id, name, data, priority, state, retry_count, retry_limit, retry_delay, retry_backoff,
    retry_delay_max, expire_seconds, deletion_seconds, dead_letter, heartbeat_seconds, policy, start_after, created_on,
    started_on, heartbeat_on, completed_on, keep_until, singleton_key, singleton_on, group_id, group_tier, blocking,
    source_name, source_id, source_created_on, source_retry_count, source_output, source_root_id, trace_context,
    upsert_by_key)
  select u.id, c.queue, u.data, u.priority,
    (case when as_state = 'created' and u.retry_count > 0 then 'retry' else as_state end)::pgboss.job_state, u.retry_count, u.retry_limit,
    q.retry_delay, q.retry_backoff, q.retry_delay_max, q.expire_seconds, q.deletion_seconds, q.dead_letter,
    q.heartbeat_seconds, coalesce(u.origin->>'policy', q.policy),
    case when as_state = 'created' then clock_timestamp() + delay_ms * interval '1 ms' else u.created_at end,
    u.created_at, case when as_state <> 'created' then c.taken_at end,
    case when as_state = 'active' then c.seen_at end, case when as_state = 'cancelled' then clock_timestamp() end,
    clock_timestamp() + q.retention_seconds * interval '1 s',
    u.origin->>'singleton_key', (u.origin->>'singleton_on')::timestamp, u.origin->>'group_id', u.origin->>'group_tier',
    coalesce((u.origin->>'blocking')::boolean, false), u.origin->>'source_name', (u.origin->>'source_id')::uuid,
    (u.origin->>'source_created_on')::timestamptz, (u.origin->>'source_retry_count')::int, u.origin->'source_output',
    (u.origin->>'source_root_id')::uuid, u.origin->'trace_context', (u.origin->>'upsert_by_key')::boolean
  from claims c join pgboss.queue q on q.name = c.queue
    cross join lateral unnest(c.ids, c.payloads, c.retry_counts, c.retry_limits, c.priorities, c.created_ats, c.origins)
      with ordinality as u (id, data, retry_count, retry_limit, priority, created_at, origin, place)
  where c.id = claim_id and get_bit(places, u.place::int - 1) = 1
  on conflict (name, id) do update set data = excluded.data, state = excluded.state,
    retry_count = excluded.retry_count, retry_limit = excluded.retry_limit, start_after = excluded.start_after,
    created_on = excluded.created_on, started_on = excluded.started_on, heartbeat_on = excluded.heartbeat_on,
    completed_on = excluded.completed_on, output = null, blocked = false;
end $$;

-- Into finished_jobs with what is done.
create function move_finished(claim_id bigint) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off
as $$
begin
  insert into finished_jobs (queue, id, data, attempts, attempts_max, priority, created_at, started_at)
  select c.queue, u.id, u.data, u.retry_count + 1, u.retry_limit + 1, u.priority, u.created_at, c.taken_at
  from claims c cross join lateral unnest(c.ids, c.payloads, c.retry_counts, c.retry_limits, c.priorities,
    c.created_ats) with ordinality as u (id, data, retry_count, retry_limit, priority, created_at, place)
  where c.id = claim_id and get_bit(c.finished, u.place::int - 1) = 1
  on conflict do nothing;
  update claims c set finished = c.finished # c.finished, moved_at = clock_timestamp() where c.id = claim_id;
end $$;

-- The marked jobs are in hand no more, as far as they were. as_state: what they are now; completed ones are kept, null is
-- gone. A text of bits a claim, the claims in the order of their ids. What is done is moved when a claim ends, and once a
-- second: a move reads the whole claim, however few it is for.
create function settle_claims(queue_name text, claim_ids bigint[], marks text[],
  as_state text default null, delay_ms float8 default 0)
returns integer
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
  held record;
  ours bit varying;
  done bit varying;
  is_over boolean;
  total integer := 0;
begin
  for i in 1 .. coalesce(array_length(claim_ids, 1), 0) loop
    select c.settled, c.finished, c.moved_at into held from claims c
    where c.id = claim_ids[i] and c.queue = queue_name for update;
    continue when not found;
    ours := marks[i]::bit varying & ~held.settled;
    continue when bit_count(ours) = 0;
    done := held.finished;
    if as_state = 'completed' then
      done := done | ours;
    elsif as_state is not null then
      perform put_back(claim_ids[i], ours, as_state, delay_ms);
    end if;
    is_over := bit_count(held.settled | ours) = length(ours);
    if not is_over or bit_count(done) > 0 then
      update claims c set settled = held.settled | ours, finished = done where c.id = claim_ids[i];
    end if;
    if bit_count(done) > 0 and (is_over or held.moved_at < clock_timestamp() - interval '1 s') then
      perform move_finished(claim_ids[i]);
    end if;
    if is_over then delete from claims c where c.id = claim_ids[i]; end if;
    total := total + bit_count(ours);
  end loop;
  return total;
end $$;

-- complete_jobs of 0003_jobs.sql for jobs that ran alone, with finished_jobs.
create function finish_jobs(queue_name text, job_ids uuid[], retry_counts integer[], keep boolean) returns integer
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
  settled integer;
begin
  with gone as (
    delete from pgboss.job j using unnest(job_ids, retry_counts) as d (id, retry_count)
    where j.name = queue_name and j.id = d.id and j.retry_count = d.retry_count and j.state::text = 'active'
    returning j.*),
  kept as (
    insert into finished_jobs (queue, id, data, attempts, attempts_max, priority, created_at, started_at)
    select g.name, g.id, g.data, g.retry_count + 1, g.retry_limit + 1, g.priority, g.created_on, g.started_on
    from gone g where keep
    on conflict do nothing)
  select count(*) into settled from gone;
  return settled;
end $$;

-- A sign of life. A claim that is not told of is lost, and so is a job that is marked. What is locked is being settled just
-- now, and left alone.
create function touch_claims(queue_name text, claim_ids bigint[])
returns table (claim bigint, settled text)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off
as $$
begin
  with held as materialized (
    select c.id from claims c where c.id = any(claim_ids) and c.queue = queue_name for no key update skip locked)
  update claims c set seen_at = clock_timestamp() where c.id = any(array(select h.id from held h));
  perform move_finished(c.id) from claims c
  where c.id = any(claim_ids) and bit_count(c.finished) > 0 and c.moved_at < clock_timestamp() - interval '1 s'
    and c.seen_at > clock_timestamp() - interval '1 s';
  return query
    select c.id, c.settled::text from claims c where c.id = any(claim_ids) and c.queue = queue_name;
end $$;

-- Claims without a sign of life, or held for too long, become active rows of pg-boss's table, which
-- recoverJobs (db/failures.ts) then fails. Skips what another process is settling.
create function open_stale_claims(queue_name text) returns integer
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
  stale record;
  total integer := 0;
begin
  for stale in
    select c.id, c.settled from claims c join pgboss.queue q on q.name = c.queue
    where c.queue = queue_name and (c.seen_at + q.heartbeat_seconds * interval '1 s' < clock_timestamp()
      or c.taken_at + q.expire_seconds * interval '1 s' < clock_timestamp())
    limit 10 for update of c skip locked
  loop
    perform put_back(stale.id, ~stale.settled, 'active');
    perform move_finished(stale.id);
    delete from claims c where c.id = stale.id;
    total := total + bit_count(~stale.settled);
  end loop;
  return total;
end $$;

-- What is in hand of that id, settled as cancelled. How many: one or none.
create function cancel_in_hand(queue_name text, job_id uuid) returns integer
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
  held record;
begin
  for held in
    select c.id, c.settled, array_position(c.ids, job_id) as place from claims c
    where c.queue = queue_name and job_id = any(c.ids) for update
  loop
    if get_bit(held.settled, held.place - 1) = 0 then
      return settle_claims(queue_name, array[held.id],
        array[set_bit(repeat('0', length(held.settled))::bit varying, held.place - 1, 1)::text], 'cancelled');
    end if;
  end loop;
  return 0;
end $$;

-- Appends jobs in their order, due after so many ms. With named, the ids were given by whoever sends: one that is in the
-- queue already, or kept as finished, is left out.
create function send_jobs(queue_name text, ids uuid[], payloads text[], delays float8[], priorities integer[],
  named boolean)
returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off
as $$
declare
  q record;
begin
  select retry_limit, retry_delay, retry_backoff, retry_delay_max, expire_seconds, deletion_seconds, dead_letter,
    heartbeat_seconds, policy, retention_seconds * interval '1 s' as kept into q
  from pgboss.queue where name = queue_name;
  if not found then raise 'the queue "%" does not exist: run `fleet migrate`', queue_name; end if;
  insert into pgboss.job (id, name, data, priority, retry_limit, retry_delay, retry_backoff, retry_delay_max,
    expire_seconds, deletion_seconds, dead_letter, heartbeat_seconds, policy, start_after, keep_until)
  select u.id, queue_name, u.payload::jsonb, u.priority, q.retry_limit, q.retry_delay, q.retry_backoff,
    q.retry_delay_max, q.expire_seconds, q.deletion_seconds, q.dead_letter, q.heartbeat_seconds, q.policy,
    now() + u.delay * interval '1 ms', now() + u.delay * interval '1 ms' + q.kept
  from unnest(ids, payloads, delays, priorities) as u (id, payload, delay, priority)
  where not named or (select 1 from finished_jobs f where f.queue = queue_name and f.id = u.id limit 1) is null
  on conflict do nothing;
end $$;
