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
