// The peer of bench/holds: what a team writes first. Fastify and pg, a SERIALIZABLE transaction a request with the same
// retry rule, FOR UPDATE SKIP LOCKED seats, the idempotency record and the outbox row in the transaction. Same tables,
// same answer, no authentication, no limits, no validation beyond the schema: less work a request than ours.

import { setTimeout as sleep } from 'node:timers/promises'
import Fastify from 'fastify'
import pg from 'pg'
import { v7 as uuidv7 } from 'uuid'
import { slotOf } from '../../db/outbox.ts'
import { retriedSqlStates, transactionDelayMs } from '../../domain/retries.ts'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 16 })
const app = Fastify()

type Body = { event_id: string; quantity: number }

async function hold(client: pg.PoolClient, key: string, userId: string, body: Body) {
  await client.query('begin isolation level serializable')
  await client.query("set local lock_timeout = '8s'")
  const seen = await client.query('select status, body from idempotency_records where key = $1', [
    key,
  ])
  if (seen.rows[0]) return { status: seen.rows[0].status, body: seen.rows[0].body }
  const free = await client.query(
    `select seat_no, label, section_no from seats where event_id = $1 and state = 'free'
     order by seat_no limit $2 for update skip locked`,
    [body.event_id, body.quantity],
  )
  if (free.rows.length < body.quantity) return { status: 409, body: '{"code":"SOLD_OUT"}' }
  const id = uuidv7()
  const seatNos = free.rows.map((row) => row.seat_no)
  await client.query(
    "update seats set state = 'held', reservation_id = $1 where event_id = $2 and seat_no = any($3)",
    [id, body.event_id, seatNos],
  )
  const reservation = await client.query(
    `insert into reservations (id, event_id, user_id, section_no, quantity, seat_nos, expires_at)
     values ($1, $2, $3, $4, $5, $6, clock_timestamp() + interval '15 minutes')
     returning expires_at`,
    [id, body.event_id, userId, free.rows[0].section_no, body.quantity, seatNos],
  )
  const data = {
    reservation_id: id,
    event_id: body.event_id,
    section: 'A',
    quantity: body.quantity,
    seats: free.rows.map((row) => row.label),
    expires_at: reservation.rows[0].expires_at,
  }
  await client.query(
    `insert into outbox (slot, message_id, type, subject, sequence, data)
     values ($1, $2, 'reservation.held', $3, 1, $4)`,
    [slotOf(id), uuidv7(), id, { ...data, user_id: userId }],
  )
  const answer = JSON.stringify({ status: 'held', ...data })
  await client.query(
    `insert into idempotency_records (key, fingerprint, status, headers, body)
     values ($1, '', 201, '{}', $2)`,
    [key, answer],
  )
  return { status: 201, body: answer }
}

app.post('/api/v1/reservations', async (request, reply) => {
  const key = String(request.headers['idempotency-key'])
  const userId = String(request.headers['x-mock-user-id'])
  for (let attempt = 1; ; attempt++) {
    const client = await pool.connect()
    try {
      const { status, body } = await hold(client, key, userId, request.body as Body)
      await client.query('commit')
      return reply.code(status).type('application/json').send(body)
    } catch (error) {
      await client.query('rollback')
      if (!retriedSqlStates.has((error as { code: string }).code) || attempt === 6) {
        return reply.code(503).send({ code: 'LOCK_TIMEOUT' })
      }
    } finally {
      client.release()
    }
    await sleep(transactionDelayMs(attempt, Math.random()))
  }
})

await app.listen({ host: '127.0.0.1', port: Number(process.env.HTTP_PORT) })
