-- The W3C traceparent of the request that an event came from, so that its trace goes on behind the outbox. Written from
-- this release on; the one before leaves it null and reads nothing of it. Frozen once landed.

alter table outbox add column traceparent text;
