-- Token buckets shared by all instances: one row a rate.
create table rate_buckets (
  name text primary key,
  tokens double precision not null check (tokens >= 0),
  filled_at timestamptz not null
) with (fillfactor = 10);
