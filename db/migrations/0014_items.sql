-- Items: what is offered besides places, found by text and by likeness. Frozen once landed.

-- One for all items: whatever changes about one gets a higher number than anything before, its end too. Search indexes
-- and jobs compare by it, so that what comes late changes nothing.
create sequence item_versions;

-- version grows with whatever is indexed, the embedding too; content_version with what is embedded.
create table items (
  id uuid primary key,
  title text not null,
  description text not null default '',
  -- An https URL, or the image itself as a data: URL.
  image text,
  version bigint not null default nextval('item_versions'),
  content_version bigint not null,
  -- Words without accents and capitals (the server's locale may know no others than those of English), as they are in any
  -- language and by their English stems: item_words.
  search tsvector not null default '',
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp()
);
create function item_words(title text, description text) returns tsvector
language sql immutable parallel safe
return setweight(to_tsvector('simple'::regconfig, title) || to_tsvector('english'::regconfig, title), 'A')
  || setweight(to_tsvector('simple'::regconfig, description) || to_tsvector('english'::regconfig, description), 'B');
create index items_search on items using gin (search);

-- Vectors of one model, which alone can be compared. centre: what is taken off a vector before its code is made (null:
-- nothing), from so many of them; next_*: of the codes that are being made to replace those of `generation`.
create table item_spaces (
  id smallint generated always as identity primary key,
  model text not null unique,
  dimensions integer not null check (dimensions between 2 and 16000),
  generation integer not null default 1,
  centre bytea,
  centred_on integer not null default 0,
  next_generation integer,
  next_centre bytea,
  created_at timestamptz not null default clock_timestamp()
);

-- float4, little endian, of length 1. applied_no: the turn of item_turns in which its neighbours were written last; null:
-- not yet. whole: every other item of the space is in its list.
create table item_embeddings (
  item_id uuid primary key references items (id) on delete cascade,
  space_id smallint not null references item_spaces (id),
  content_version bigint not null,
  vector bytea not null,
  applied_no bigint,
  whole boolean not null default false,
  embedded_at timestamptz not null default clock_timestamp()
);
-- It does not compress.
alter table item_embeddings alter column vector set storage external;
create index item_embeddings_space on item_embeddings (space_id, item_id);
create index item_embeddings_applied on item_embeddings (applied_no);

-- 2048 bits that stand for a vector: the more of them differ, the farther apart. reach: an item this far away or nearer
-- may belong into this one’s list; -1: none, as its own list is on its way.
create table item_codes (
  space_id smallint not null,
  generation integer not null,
  item_id uuid not null references items (id) on delete cascade,
  code bit(2048) not null,
  reach integer not null default -1,
  primary key (space_id, generation, item_id)
) with (fillfactor = 80);
create index item_codes_item on item_codes (item_id);

-- The lists. other_id has no key that leads to items: the job of a deleted item takes it out of the lists of others.
create table item_neighbours (
  item_id uuid not null references items (id) on delete cascade,
  other_id uuid not null,
  score real not null,
  primary key (item_id, other_id)
);
create index item_neighbours_other on item_neighbours (other_id);

-- Lists are written one after the other: its one row is the turn.
create table item_turns (
  is_only boolean primary key default true check (is_only),
  no bigint not null
) with (fillfactor = 10);
insert into item_turns (no) values (0);

-- What a vendor says of its limits, in its answers, and what was asked of it since: all instances keep to it together.
create table vendor_limits (
  name text primary key,
  state jsonb not null
) with (fillfactor = 10);

-- Search indexes that are being built anew: one at a time of each target, by whoever shows signs of life. What is there
-- goes on where the last one stopped.
create table item_rebuilds (
  target text primary key,
  index_name text not null,
  after uuid,
  done integer not null default 0,
  total integer not null,
  owner uuid not null,
  started_at timestamptz not null default clock_timestamp(),
  seen_at timestamptz not null default clock_timestamp()
);
