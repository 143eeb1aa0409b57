-- What people do at the console, and the sessions they ended. Frozen once landed.

-- One row a change that somebody asked for, written before it is made and settled after it. One that goes through
-- thousands of jobs says here how far it is; cursor: where it goes on. A row that is `running` and was not seen for a
-- while belonged to a process that is gone. detail, subject and outcome hold neither secrets nor personal data.
create table operator_actions (
  id uuid primary key,
  at timestamptz not null default clock_timestamp(),
  who text not null,
  address text not null,
  -- The beginning of the session's id: tells two people at one address apart.
  session text not null,
  action text not null,
  subject text not null,
  detail jsonb not null default '{}',
  state text not null default 'running' check (state in ('running', 'done', 'failed', 'stopped')),
  total integer,
  looked integer not null default 0,
  done integer not null default 0,
  cursor text,
  outcome text,
  seen_at timestamptz not null default clock_timestamp(),
  finished_at timestamptz
);
create index operator_actions_at on operator_actions using brin (at) with (autosummarize = on);

-- Sessions are signed, not stored; one that was ended before its time stands here until then.
create table ended_sessions (
  id text primary key,
  expires_at timestamptz not null
);
