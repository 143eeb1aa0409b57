// The load: buyers who hold places by quantity and by name on small events that sell out and on a large one, then pay,
// pay twice, pay in the last moment, change their mind or just leave. When a small event has sold out, the next one goes
// on sale. What they want is thrown from the dice; what they get is up to the fleet.

import { setTimeout as sleep } from 'node:timers/promises'
import { type Client, createClient, type Write } from './client.ts'
import type { Dice } from './dice.ts'

export type Buyers = Pick<
  Client,
  'cut' | 'counts' | 'faults' | 'writes' | 'giveUpAfter' | 'close'
> & {
  /** Accounts and events. */
  open(): Promise<void>
  /** Buys until the signal aborts, then brings to its end what was begun. */
  run(signal: AbortSignal): Promise<void>
  /** Places confirmed, as the buyers were told. */
  sold(): number
}

export type BuyersOptions = {
  ports: readonly number[]
  secret: string
  ttlSeconds: number
  dice: Dice
  /** Buyers at once. */
  count: number
}

type Show = { id: string; hot: boolean; soldOut: number; sections: Section[] }
type Section = { name: string; rows?: number; seats_per_row?: number; capacity?: number }

const price = { price_minor: 4500, currency: 'EUR' }
const small: Section[] = [
  { name: 'Stalls', rows: 4, seats_per_row: 12 },
  { name: 'Floor', capacity: 40 },
]
const large: Section[] = [
  { name: 'Parterre', rows: 60, seats_per_row: 50 },
  { name: 'Tier', rows: 140, seats_per_row: 50 },
  { name: 'Standing', capacity: 10_000 },
]
const hotShows = 3
/** Refusals after which the next show replaces one. */
const soldOutMax = 40
const laterChance = 0.25
const thinkMs = { least: 0, most: 150 }

export function createBuyers({ ports, secret, ttlSeconds, dice, count }: BuyersOptions): Buyers {
  const client = createClient(ports, secret, dice)
  const shows: Show[] = []
  let opened = 0
  let sold = 0

  async function openShow(hot: boolean): Promise<Show | undefined> {
    const sections = hot ? small : large
    const made = await client.decide({
      what: 'event',
      method: 'POST',
      path: '/events',
      later: false,
      body: {
        name: `Night ${++opened}`,
        starts_at: '2031-06-01T19:30:00Z',
        sections: sections.map((section) => ({ ...section, ...price })),
      },
    })
    if (made?.status !== 201) return undefined
    return { id: JSON.parse(made.body).event_id, hot, soldOut: 0, sections }
  }

  async function replace(show: Show): Promise<void> {
    show.soldOut = Number.NEGATIVE_INFINITY
    const next = await openShow(true)
    if (next) shows[shows.indexOf(show)] = next
  }

  /** By quantity, in any section or a named one, or seats side by side, by name. */
  function wish({ id, hot, sections }: Show): object {
    const quantity = Math.ceil(dice.between(0, hot ? 4 : 6))
    const way = dice.random()
    if (way < 0.4) return { event_id: id, quantity }
    const section = dice.pick(sections)
    const { name, rows, seats_per_row: width } = section
    if (way < 0.6 || rows === undefined || width === undefined) {
      return { event_id: id, quantity, section: name }
    }
    const row = Math.ceil(dice.between(0, rows))
    const first = Math.ceil(dice.between(0, width - quantity))
    const seats = Array.from({ length: quantity }, (_, i) => `${name}-${row}-${first + i}`)
    return { event_id: id, seats }
  }

  async function visit(userId: string): Promise<void> {
    const show = dice.random() < 0.7 ? dice.pick(shows.slice(1)) : shows[0]!
    const later = dice.random() < laterChance
    const path = '/reservations'
    const answer = await client.decide({
      what: 'hold',
      method: 'POST',
      path,
      userId,
      later,
      body: wish(show),
    })
    if (answer?.status === 409 && show.hot && ++show.soldOut > soldOutMax) await replace(show)
    if (answer?.status !== 201) return
    const { reservation_id } = JSON.parse(answer.body)
    await settle(userId, reservation_id)
  }

  async function settle(userId: string, reservationId: string): Promise<void> {
    const change = async (what: 'confirm' | 'cancel') => {
      const answer = await client.decide({
        what,
        method: 'POST',
        path: `/reservations/${reservationId}/${what}`,
        userId,
        reservationId,
        later: dice.random() < laterChance,
      })
      if (what === 'confirm' && answer?.status === 200) sold += JSON.parse(answer.body).quantity
    }
    const luck = dice.random()
    if (luck < 0.45) await change('confirm')
    else if (luck < 0.55) await Promise.all([change('confirm'), change('confirm')])
    else if (luck < 0.65) await Promise.all([change('confirm'), change('cancel')])
    else if (luck < 0.77) {
      await sleep(ttlSeconds * 1000 + dice.between(-400, 200))
      await change('confirm')
    } else if (luck < 0.88) await change('cancel')
  }

  async function live(userId: string, signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      await visit(userId)
      if (dice.random() < 0.1) await repeatOne()
      await sleep(dice.between(thinkMs.least, thinkMs.most))
    }
  }

  /** Any write that was answered, however long ago. */
  async function repeatOne(): Promise<void> {
    const write: Write | undefined = dice.pick(client.writes)
    const done = write?.later ? write.outcome : write?.answer
    if (write && done) await client.repeat(write)
  }

  const userIds = Array.from({ length: count }, (_, i) => `buyer-${i + 1}`)

  return {
    ...client,
    sold: () => sold,
    async open() {
      for (const hot of [false, ...Array<boolean>(hotShows).fill(true)]) {
        const show = await openShow(hot)
        if (show) shows.push(show)
      }
      await Promise.all(
        userIds.map((userId) =>
          client.decide({
            what: 'user',
            method: 'PUT',
            path: `/users/${userId}`,
            userId,
            later: false,
            body: { email: `${userId}@example.com`, locale: 'en' },
          }),
        ),
      )
    },
    async run(signal) {
      await Promise.all(userIds.map((userId) => live(userId, signal)))
    },
  }
}
