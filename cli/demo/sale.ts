// The sale of the demo, step by step: accounts, the rush on the hall, payments, cancellations, unpaid holds that run
// out, and the second rush on what came back. Chance decides who pays, from a fixed seed, so that runs are alike.

import { setTimeout as sleep } from 'node:timers/promises'
import { readSales } from '../../db/sales.ts'
import type { Db } from '../../db/schema.ts'
import { type Buyers, each, newKey } from './buyers.ts'

export type Sale = {
  eventId: string
  /** Requests sent a second time under their key, by double click or after hanging up. */
  repeated: number
  /** Repeated requests whose two answers differ, or of which two took effect. */
  twice: string[]
  /** Places asked for. */
  asked: number
  rush: { buyers: number; seconds: number; latencies: number[] }
  /** Buyers who were refused in the rush. */
  refused: number
}

export type Stage = {
  /** A headline. */
  step(text: string): void
  /** How far the step is; replaces itself on a terminal. */
  progress(text: string): void
}

const hall = [
  { name: 'Stalls', rows: 40, seats_per_row: 50, price_minor: 9500, currency: 'EUR' },
  { name: 'Circle', rows: 36, seats_per_row: 50, price_minor: 7500, currency: 'EUR' },
  { name: 'Balcony', rows: 24, seats_per_row: 50, price_minor: 4900, currency: 'EUR' },
]
export const buyerCount = 4200
const chance = { hangUp: 0.08, doubleClick: 0.08, unpaid: 0.2, cancel: 0.08 }

/** mulberry32, a small generator that is good enough to shuffle buyers. */
function dice(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}

type Buyer = { id: string; quantity: number; luck: number; reservation?: string }

export async function runSale(buyers: Buyers, db: Db, secret: string, stage: Stage): Promise<Sale> {
  const random = dice(2027)
  const crowd: Buyer[] = Array.from({ length: buyerCount }, (_, i) => ({
    id: `buyer-${String(i + 1).padStart(4, '0')}`,
    quantity: 1 + Math.floor(random() * 4),
    luck: random(),
  }))
  stage.step('an event with 5,000 seats, and an account for each of 4,200 buyers')
  const event = {
    name: 'The Last Night',
    starts_at: '2027-09-11T19:30:00Z',
    waiting_room: false,
    sections: hall,
  }
  const made = await buyers.send('POST', '/events', {
    internal: secret,
    key: newKey(),
    body: event,
  })
  if (made.status !== 201) throw new Error(`POST /events answered ${made.status}: ${made.body}`)
  const sale: Sale = {
    eventId: JSON.parse(made.body).event_id,
    repeated: 0,
    twice: [],
    asked: crowd.reduce((sum, buyer) => sum + buyer.quantity, 0),
    rush: { buyers: crowd.length, seconds: 0, latencies: [] },
    refused: 0,
  }
  await each(
    crowd,
    64,
    async ({ id }) => {
      const body = { email: `${id}@example.com`, locale: 'en' }
      const answer = await buyers.send('PUT', `/users/${id}`, { userId: id, key: newKey(), body })
      if (answer.status !== 200)
        throw new Error(`PUT /users answered ${answer.status}: ${answer.body}`)
    },
    (count) => stage.progress(`${count} of ${crowd.length} accounts`),
  )

  stage.step(`${crowd.length} buyers press the button at once, for ${sale.asked} seats`)
  buyers.takeLatencies()
  const started = performance.now()
  await rush(buyers, crowd, sale, random, stage)
  sale.rush.seconds = (performance.now() - started) / 1000
  sale.rush.latencies = buyers.takeLatencies()
  sale.refused = crowd.filter((buyer) => !buyer.reservation).length

  stage.step('most of them pay, some cancel, some just leave')
  await settle(buyers, crowd, sale, random, stage)

  stage.step('unpaid holds run out, and their seats are free again')
  for (;;) {
    const { held, expired } = await readSales(db, sale.eventId)
    stage.progress(`${expired} holds expired, ${held} seats still held`)
    if (held === 0) break
    await sleep(200)
  }

  stage.step('those who went away empty-handed try again')
  const again = crowd.filter((buyer) => !buyer.reservation)
  await rush(buyers, again, sale, random, stage)
  await each(
    again.filter((buyer) => buyer.reservation),
    64,
    (buyer) => change(buyers, buyer, 'confirm', sale, false),
  )
  return sale
}

/** Everybody at once. */
async function rush(
  buyers: Buyers,
  crowd: Buyer[],
  sale: Sale,
  random: () => number,
  stage: Stage,
) {
  let held = 0
  let answered = 0
  const habits = crowd.map(() => random())
  await each(crowd, crowd.length, async (buyer, i) => {
    const body = { event_id: sale.eventId, quantity: buyer.quantity }
    const options = { userId: buyer.id, key: newKey(), body }
    const habit = habits[i]!
    if (habit < chance.hangUp) {
      await buyers.send('POST', '/reservations', { ...options, hangUp: true })
    }
    const twice = habit > 1 - chance.doubleClick
    const answers = await Promise.all(
      (twice ? [1, 2] : [1]).map(() => buyers.send('POST', '/reservations', options)),
    )
    if (twice || habit < chance.hangUp) sale.repeated++
    compare(answers, `${buyer.id} pressed twice`, sale)
    const [{ status, body: text }] = answers as [(typeof answers)[0]]
    if (status === 201) {
      buyer.reservation = JSON.parse(text).reservation_id
      held++
    } else if (status !== 409) sale.twice.push(`POST /reservations answered ${status}: ${text}`)
    answered++
    if (answered % 50 === 0) stage.progress(`${answered} answered, ${held} hold seats`)
  })
}

async function settle(
  buyers: Buyers,
  crowd: Buyer[],
  sale: Sale,
  random: () => number,
  stage: Stage,
) {
  const holders = crowd.filter((buyer) => buyer.reservation)
  let [paid, cancelled] = [0, 0]
  await each(holders, 256, async (buyer) => {
    if (buyer.luck < chance.unpaid) return
    const what = buyer.luck < chance.unpaid + chance.cancel ? 'cancel' : 'confirm'
    await change(buyers, buyer, what, sale, random() < chance.doubleClick)
    if (what === 'confirm') paid++
    else cancelled++
    stage.progress(`${paid} paid, ${cancelled} cancelled`)
  })
}

async function change(
  buyers: Buyers,
  buyer: Buyer,
  what: 'confirm' | 'cancel',
  sale: Sale,
  twice: boolean,
): Promise<void> {
  const path = `/reservations/${buyer.reservation}/${what}`
  const options = { userId: buyer.id, key: newKey() }
  const answers = await Promise.all(
    (twice ? [1, 2] : [1]).map(() => buyers.send('POST', path, options)),
  )
  if (twice) sale.repeated++
  compare(answers, `${buyer.id} sent ${what} twice`, sale)
  // Too late to pay is an honest answer too: the seats go to somebody else.
  if (answers[0]!.status !== 200 && answers[0]!.status !== 410) {
    sale.twice.push(`${what} answered ${answers[0]!.status}: ${answers[0]!.body}`)
  }
}

function compare(answers: { status: number; body: string }[], who: string, sale: Sale): void {
  const [first, ...others] = answers
  for (const other of others) {
    if (other.status !== first!.status || other.body !== first!.body) {
      sale.twice.push(`${who}: ${first!.status} ${first!.body} and ${other.status} ${other.body}`)
    }
  }
}
