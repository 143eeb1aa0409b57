// What must be true when the torture is over, as queries: each gives the rows that break its rule. They compare three
// tellings: what the clients were told (`told`), what the tables keep as told (records, commands), and what is there.

/** `decided`: what became of each write in the end. `receipts`: what the tables say of it. */
export const tables = `
  create temp table told (
    key text primary key, what text, user_id text, reservation_id uuid, quantity int, later boolean,
    status int, body text, outcome_status int, outcome_body text);
  create temp view decided as
    select key, what, user_id, reservation_id as of, quantity,
      case when later then outcome_status else status end as status,
      (case when later then outcome_body else body end)::jsonb as body
    from told where status is not null;
  create temp view receipts as
    select key, status, body::jsonb as body from idempotency_records r where status <> 202
    union all
    select r.key, c.status, c.response::jsonb from idempotency_records r
    join commands c on c.id = (r.body::jsonb ->> 'command_id')::uuid where r.status = 202`

/** `inside`: only where events go through the job table. */
export const checks: readonly { name: string; query: string; inside?: boolean }[] = [
  {
    name: 'there was something to prove: places were held, sold and given back',
    query: `select wanted as row from unnest(array['hold 201', 'confirm 200', 'cancel 200'])
      as wanted where wanted not in (select what || ' ' || status from decided)`,
  },
  {
    name: 'every write was answered',
    query: `select what || ' ' || key as row from told
      where status is null or (later and status = 202 and outcome_status is null)`,
  },
  {
    name: 'every answer is kept under its key, as it was told',
    query: `select key as row from told t left join idempotency_records r using (key)
      where t.status is not null and (r.status, r.body) is distinct from (t.status, t.body)`,
  },
  {
    name: 'every asynchronous outcome is kept, as it was told',
    query: `select t.key as row from told t
      left join commands c on c.id = (t.body::jsonb ->> 'command_id')::uuid
      where t.outcome_status is not null
        and (c.status, c.response) is distinct from (t.outcome_status, t.outcome_body)`,
  },
  {
    name: 'every hold that was told is there, as it was told',
    query: `select d.key || ' ' || (d.body ->> 'reservation_id') as row from decided d
      left join reservations r on r.id = (d.body ->> 'reservation_id')::uuid
      where d.what = 'hold' and d.status = 201 and (r.user_id, r.event_id::text, r.quantity)
        is distinct from (d.user_id, d.body ->> 'event_id', (d.body ->> 'quantity')::int)`,
  },
  {
    name: 'no two keys were told the same hold',
    query: `select min(body ->> 'reservation_id') as row from decided
      where what = 'hold' and status = 201
      group by body ->> 'reservation_id' having count(*) > 1`,
  },
  {
    name: 'a hold has as many places as were asked for',
    query: `select key as row from decided where what = 'hold' and status = 201
      and ((body ->> 'quantity')::int <> quantity
        or jsonb_array_length(coalesce(body -> 'seats', '[]')) not in (0, quantity))`,
  },
  {
    name: 'nobody was told of a seat that another bought',
    query: `select min(body ->> 'event_id') || ' ' || (ticket ->> 'seat') as row
      from decided cross join jsonb_array_elements(body -> 'tickets') as ticket
      where what = 'confirm' and status = 200 and ticket ? 'seat'
      group by body ->> 'event_id', ticket ->> 'seat' having count(*) > 1`,
  },
  {
    name: 'every confirmation that was told has its order and its tickets',
    query: `select d.key as row from decided d
      left join reservations r on r.id = d.of left join orders o on o.reservation_id = d.of
      where d.what = 'confirm' and d.status = 200 and (
        (r.state, o.id::text, o.user_id) is distinct from ('confirmed', d.body ->> 'order_id', d.user_id)
        or (select count(*) from tickets t where t.order_id = o.id) <> r.quantity
        or exists (select from jsonb_array_elements(d.body -> 'tickets') as said
          where not exists (select from tickets t
            where t.id::text = said ->> 'ticket_id' and t.order_id = o.id)))`,
  },
  {
    name: 'no reservation was told confirmed twice, or confirmed and cancelled',
    query: `select of::text as row from decided where what in ('confirm', 'cancel') and status = 200
      group by of having count(*) > 1`,
  },
  {
    name: 'every cancellation that was told stayed',
    query: `select d.key as row from decided d join reservations r on r.id = d.of
      where d.what = 'cancel' and d.status = 200 and r.state <> 'cancelled'`,
  },
  {
    name: 'what was told expired did expire',
    query: `select d.key as row from decided d join reservations r on r.id = d.of
      where d.status = 410 and r.state <> 'expired'`,
  },
  {
    name: 'no receipt is under a key that nobody sent',
    query: `select key as row from idempotency_records left join told using (key)
      where told.key is null`,
  },
  {
    name: 'every reservation comes of exactly one hold',
    query: `select r.id::text as row from reservations r
      left join receipts a on a.status = 201 and a.body ->> 'reservation_id' = r.id::text
      group by r.id having count(a.key) <> 1`,
  },
  {
    name: 'every order and every cancellation comes of exactly one request',
    query: `select r.id::text as row from reservations r
      left join told t on t.reservation_id = r.id
        and t.what = case r.state when 'confirmed' then 'confirm' else 'cancel' end
      left join receipts a on a.key = t.key and a.status = 200
      where r.state in ('confirmed', 'cancelled')
      group by r.id having count(a.key) <> 1`,
  },
  {
    name: 'every asynchronous command is finished',
    query: `select id::text as row from commands where status is null`,
  },
  {
    name: 'no hold is left whose time is over',
    query: `select id::text as row from reservations where state = 'held'`,
  },
  {
    name: 'every event was relayed, and none twice',
    query: `select written || ' written, ' || relayed || ' relayed' as row from
      (select count(*) as written from outbox) o, (select sum(relayed) as relayed from outbox_cursors) c
      where written <> relayed`,
  },
  {
    name: 'every event that somebody asked for was processed exactly once',
    query: `select coalesce(o.message_id, p.message_id)::text as row
      from (select message_id from outbox where type in ('order.completed', 'ticket.generated')) o
      full join inbox_processed p on p.message_id = o.message_id
      where o.message_id is null or p.message_id is null`,
  },
  {
    name: 'every event arrived in one job, those of one subject in their order',
    inside: true,
    query: `select subject as row from (
        select o.subject, o.sequence, o.message_id, count(j.id) as jobs, min(j.created_on) as made,
          lag(min(j.created_on)) over (partition by o.subject order by o.sequence) as before
        from outbox o left join torture_inbox j on j.id = o.message_id
        where o.type in ('order.completed', 'ticket.generated')
        group by o.subject, o.sequence, o.message_id) arrived
      where jobs <> 1 or made < before`,
  },
  {
    name: 'every order has exactly its two mails',
    query: `select o.id::text as row from orders o
      left join finished_jobs j on j.queue = 'email' and j.data -> 'payload' ->> 'order_id' = o.id::text
      group by o.id having count(*) <> 2 or count(distinct j.data ->> 'template') <> 2`,
  },
  {
    name: 'every job ran as often as its failures and the deaths of its workers explain',
    query: `select j.queue || ' ' || j.id || ': ' || j.attempts || ' attempts' as row
      from finished_jobs j left join job_errors e on e.job_id = j.id and e.queue = j.queue
      group by j.queue, j.id, j.attempts having count(e.attempt) <> j.attempts - 1
      union all select 'no job was kept' where not exists (select from finished_jobs)`,
  },
  {
    name: 'every queue is empty, every dead letter queue too',
    query: `select name || ' ' || state || ' ' || id as row from pgboss.job
      union all select queue || ' in hand ' || id from claims`,
  },
]
