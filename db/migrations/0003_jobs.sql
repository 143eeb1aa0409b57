-- The operator's side of the job table: what went wrong at each attempt, what was given up and why, which queues rest,
-- which workers are alive, what fires when. pg-boss's own tables lie in the schema pgboss. Frozen once landed.

-- One row a failed attempt; gone with its job (db/attempts.ts prunes). message and stack are redacted before they come
-- here. kind: its handler failed, its worker died with it in hand, it took too long, no repetition can mend it.
create table job_errors (
  job_id uuid not null,
  queue text not null,
  attempt integer not null,
  kind text not null check (kind in ('failed', 'died', 'late', 'hopeless')),
  failed_at timestamptz not null default clock_timestamp(),
  message text not null,
  stack text,
  primary key (job_id, queue, attempt)
);
create index job_errors_failed_at on job_errors using brin (failed_at);

-- One row a job that reached a dead letter queue, kept after the job is retried or removed. errors is the history as
-- [{attempt, failed_at, message}]. resolved_* say what the operator did.
create table job_audits (
  id uuid primary key,
  code text not null default 'SASO-INFRA-9100',
  -- The job as it was in its queue, and the job it became in the dead letter queue.
  job_id uuid not null,
  dead_job_id uuid not null,
  queue text not null,
  type text,
  transport text not null default 'pg-boss',
  attempts integer not null,
  errors jsonb not null,
  stack text,
  created_at timestamptz not null default clock_timestamp(),
  resolved_at timestamptz,
  resolved_as text check (resolved_as in ('retried', 'removed')),
  check ((resolved_at is null) = (resolved_as is null))
);
create index job_audits_open on job_audits (queue, created_at) where resolved_at is null;
create index job_audits_dead on job_audits (dead_job_id);
create index job_audits_job on job_audits (job_id);

-- A row: the queue is paused. Workers claim nothing from it.
create table paused_queues (
  queue text primary key,
  paused_at timestamptz not null default clock_timestamp()
);

-- Who is alive, where, since when, doing what. A row that was not seen for a while is a worker that died.
create table workers (
  id uuid primary key,
  name text not null,
  host text not null,
  pid integer not null,
  version text,
  started_at timestamptz not null default clock_timestamp(),
  seen_at timestamptz not null default clock_timestamp(),
  -- {queues: {email: {active: 3, handled: 120}}, rss: bytes}
  doing jsonb not null default '{}'
);
create index workers_seen on workers (seen_at);

-- `jobs stop-workers`: every worker that started before asked_at finishes what it has and exits.
create table stop_requests (
  id integer primary key default 1 check (id = 1),
  asked_at timestamptz not null
);

-- What fires when: every so many ms, or by cron in a time zone. Whoever moves next_at fires it, and nobody else.
create table schedules (
  name text primary key,
  next_at timestamptz not null,
  fired_at timestamptz
);

-- The hot statements on pg-boss's table (its schema 46: what it calls fetch, complete, touch, restore). As functions,
-- since a function carries its planner settings with it: a queue that grew by a sale has the statistics of an empty one,
-- and a plan made from those reads the whole backlog for each batch. Behaves as pg-boss's own: a claim of a job that was
-- begun before is its next attempt, and a settlement names the attempt it was claimed in.

-- created_ms: since 1970, as reading a time out of a text costs a worker more than the rest of the row.

-- Up to batch_max jobs that are due, by job_i11 (name, priority, created_on, start_after), skipping what others claim.
-- None of a paused queue. With active_max no more than that are active at once: claims of the queue then take turns.
create function claim_jobs(queue_name text, batch_max integer, active_max integer default null)
returns table (id uuid, data jsonb, retry_count integer, retry_limit integer, priority integer, created_ms float8)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
begin
  if exists (select from paused_queues p where p.queue = queue_name) then return; end if;
  if active_max is not null then
    perform pg_advisory_xact_lock(hashtext('claim_jobs'), hashtext(queue_name));
    batch_max := least(batch_max, active_max - (
      select count(*)::int from pgboss.job j where j.name = queue_name and j.state = 'active'));
    if batch_max <= 0 then return; end if;
  end if;
  -- By ctid: half the reading. What somebody changed since the statement began is left to the next claim.
  return query
    with next as materialized (
      select j.ctid as place from pgboss.job j
      where j.name = queue_name and j.state < 'active' and not j.blocked and j.start_after <= now()
      order by j.priority desc, j.created_on limit batch_max for update of j skip locked)
    update pgboss.job j set state = 'active', started_on = now(), heartbeat_on = now(),
      retry_count = case when j.started_on is null then j.retry_count else j.retry_count + 1 end
    where j.name = queue_name and j.ctid = any(array(select n.place from next n))
    returning j.id, j.data, j.retry_count, j.retry_limit, j.priority,
      1000 * date_part('epoch', j.created_on);
end $$;

-- One job whose worker died with it in hand and others: to be run alone. `blocked` keeps it from everybody else, by
-- job_i14 (name, state, blocked, start_after).
create function claim_suspect(queue_name text)
returns table (id uuid, data jsonb, retry_count integer, retry_limit integer, priority integer, created_ms float8)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
begin
  if exists (select from paused_queues p where p.queue = queue_name) then return; end if;
  return query
    with next as materialized (
      select j.id from pgboss.job j
      where j.name = queue_name and j.state = 'retry' and j.blocked and j.start_after <= now()
      order by j.start_after limit 1 for update of j skip locked)
    update pgboss.job j set state = 'active', started_on = now(), heartbeat_on = now(),
      retry_count = case when j.started_on is null then j.retry_count else j.retry_count + 1 end
    from next n where j.name = queue_name and j.id = n.id
    returning j.id, j.data, j.retry_count, j.retry_limit, j.priority,
      1000 * date_part('epoch', j.created_on);
end $$;

create function has_suspects(queue_name text) returns boolean
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
begin
  return exists (select from pgboss.job j
    where j.name = queue_name and j.state = 'retry' and j.blocked and j.start_after <= now());
end $$;

-- Settle what is still ours: completed and kept, or gone. Jobs are locked in the order given.
create function complete_jobs(queue_name text, ids uuid[], retry_counts integer[], keep boolean) returns integer
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
  settled integer;
begin
  if keep then
    update pgboss.job j set state = 'completed', completed_on = now(), output = null
    from unnest(ids, retry_counts) as d (id, retry_count)
    where j.name = queue_name and j.id = d.id and j.retry_count = d.retry_count and j.state::text = 'active';
  else
    delete from pgboss.job j using unnest(ids, retry_counts) as d (id, retry_count)
    where j.name = queue_name and j.id = d.id and j.retry_count = d.retry_count and j.state::text = 'active';
  end if;
  get diagnostics settled = row_count;
  return settled;
end $$;

create function touch_jobs(queue_name text, ids uuid[], retry_counts integer[]) returns integer
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
  settled integer;
begin
  update pgboss.job j set heartbeat_on = now() from unnest(ids, retry_counts) as d (id, retry_count)
  where j.name = queue_name and j.id = d.id and j.retry_count = d.retry_count and j.state::text = 'active';
  get diagnostics settled = row_count;
  return settled;
end $$;

-- Gives back without an attempt spent: without started_on the next claim does not count as a new one.
create function release_jobs(queue_name text, ids uuid[], retry_counts integer[], delay_ms float8) returns integer
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
declare
  settled integer;
begin
  update pgboss.job j set started_on = null, heartbeat_on = null,
    state = (case when j.retry_count = 0 then 'created' else 'retry' end)::pgboss.job_state,
    start_after = now() + delay_ms * interval '1 ms'
  from unnest(ids, retry_counts) as d (id, retry_count)
  where j.name = queue_name and j.id = d.id and j.retry_count = d.retry_count and j.state::text = 'active';
  get diagnostics settled = row_count;
  return settled;
end $$;
