// Does the ledger balance? Every rule that holds, an outbox, a confirmation may never break, asked of the tables
// themselves and independent of the code that writes them. Used by the demo, the property test and the torture.

import { sql } from 'kysely'
import type { Db } from './schema.ts'

/** Each rule: what is wrong, and a query for the rows that break it. */
const rules: readonly { fault: string; query: string }[] = [
  {
    fault: 'a place of a live reservation that is not its own',
    query: `
      select r.id::text as row from reservations r cross join unnest(r.seat_nos) as n (seat_no)
      left join seats s on s.event_id = r.event_id and s.seat_no = n.seat_no
      where r.state in ('held', 'confirmed') and (s.reservation_id is distinct from r.id
        or s.state <> case r.state when 'held' then 'held' else 'sold' end)`,
  },
  {
    fault: 'a seat taken by no live reservation',
    query: `
      select s.label as row from seats s
      left join reservations r on r.id = s.reservation_id and s.seat_no = any (r.seat_nos)
        and r.event_id = s.event_id
        and r.state = case s.state when 'held' then 'held' else 'confirmed' end
      where s.state <> 'free' and r.id is null`,
  },
  {
    fault: 'a seat with two live reservations',
    query: `
      select r.event_id || ' seat ' || n as row from reservations r, unnest(r.seat_nos) as n
      where r.state in ('held', 'confirmed') group by r.event_id, n having count(*) > 1`,
  },
  {
    fault: 'a standing counter that differs from its reservations',
    query: `
      select c.event_id || ' section ' || c.section_no as row from standing_sections c
      left join reservations r using (event_id, section_no)
      group by c.event_id, c.section_no, c.held, c.sold
      having c.held <> coalesce(sum(r.quantity) filter (where r.state = 'held'), 0)
        or c.sold <> coalesce(sum(r.quantity) filter (where r.state = 'confirmed'), 0)`,
  },
  {
    fault: 'more places held and sold than the section has',
    query: `
      select s.event_id || ' ' || s.name as row from sections s join reservations r
        using (event_id, section_no)
      where r.state in ('held', 'confirmed')
      group by s.event_id, s.name, s.capacity having sum(r.quantity) > s.capacity`,
  },
  {
    fault: 'a hold that the sweep would not find in time, or one it would find that is none',
    query: `
      select coalesce(r.id, d.reservation_id)::text as row
      from (select id, expires_at from reservations where state = 'held') r
      full join due_holds d on d.reservation_id = r.id
      where d.expires_at is distinct from r.expires_at`,
  },
  {
    fault: 'a confirmed reservation without its one order, or an order without it',
    query: `
      select coalesce(r.id, o.reservation_id)::text as row
      from (select id from reservations where state = 'confirmed') r
      full join orders o on o.reservation_id = r.id
      where r.id is null or o.id is null`,
  },
  {
    fault: 'an order whose tickets are not one a place',
    query: `
      select o.id::text as row from orders o left join tickets t on t.order_id = o.id
      group by o.id, o.quantity having count(t.id) <> o.quantity`,
  },
  {
    fault: 'a subject whose events do not count from 1 without a gap',
    query: `
      select subject as row from outbox group by subject
      having count(*) <> max(sequence) or count(distinct sequence) <> count(*)`,
  },
  {
    fault: 'a subject whose events lie in another order than their sequence',
    query: `
      select subject as row from (
        select subject, sequence,
          lag(sequence) over (partition by subject order by txid, id) as before from outbox
      ) o where before >= sequence`,
  },
  {
    fault: 'a reservation whose events do not tell its state',
    query: `
      select r.id::text as row from reservations r
      left join (
        select distinct on (subject) subject, type, sequence from outbox
        where type like 'reservation.%' order by subject, sequence desc
      ) e on e.subject = r.id::text
      where e.type is distinct from 'reservation.' || r.state or e.sequence <> r.version`,
  },
  {
    fault: 'a payment whose order is not there, or not of its amount',
    query: `
      select p.id as row from payments p left join orders o on o.id = p.order_id
      where p.state = 'confirmed' and (o.id is null or o.total_minor <> p.amount_minor
        or o.currency <> p.currency)`,
  },
  {
    fault: 'a payment that is due back without its one event, or an event of one that is not',
    query: `
      select coalesce(p.id, e.subject) as row
      from (select id from payments where state = 'refund_due') p
      full join (
        select subject, count(*) as told from outbox where type = 'payment.refund_due' group by 1
      ) e on e.subject = p.id
      where p.id is null or e.told is distinct from 1`,
  },
  {
    fault: 'a stored answer 201 without its reservation, or told twice',
    query: `
      select body::jsonb ->> 'reservation_id' as row from idempotency_records
      where status = 201 and body like '{"reservation_id"%'
      group by 1
      having count(*) > 1
        or not exists (select from reservations where id::text = min(body::jsonb ->> 'reservation_id'))`,
  },
]

/** Gives a line for every broken rule, with up to five rows that break it; none: the ledger balances. */
export async function auditLedger(db: Db): Promise<string[]> {
  const faults: string[] = []
  for (const { fault, query } of rules) {
    const { rows } = await sql
      .raw<{ row: string; total: string }>(
        `select row, count(*) over () as total from (${query}) as broken limit 5`,
      )
      .execute(db)
    if (rows.length > 0) {
      faults.push(`${fault}: ${rows[0]!.total} (${rows.map((r) => r.row).join(', ')})`)
    }
  }
  return faults
}
