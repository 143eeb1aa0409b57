// The relay over a broker across the network (kind b): leases slots of the outbox, reads ahead, keeps a window of events
// on their way to the broker, and moves the cursors over what it has taken. As a pass it comes back about every half a
// second while it has work, and what is on its way stays so; `finish` waits for the answers and gives the slots back. A
// broker that is away costs nothing but time: nothing is put aside, and no more is read than the window holds.

import { setTimeout as sleep } from 'node:timers/promises'
import { v7 as uuidv7 } from 'uuid'
import { readSlots, settleSlots, waitsInSlots } from '../../db/relay.ts'
import type { Db } from '../../db/schema.ts'
import type { Publisher, Verdict } from '../../domain/broker.ts'
import type { Pass } from '../loop.ts'
import type { Worker } from '../worker.ts'
import { createAsides } from './aside.ts'
import { nextLookMs } from './horizon.ts'
import { createLeases } from './leases.ts'
import type { RelayMetrics } from './metrics.ts'
import { createSlots, type Entry, moveOf, toAside, toOutgoing } from './slots.ts'

export type RelayOptions = {
  db: Db
  publisher: Publisher
  /** Events on their way at once, at most. */
  windowMax: number
  worker: Pick<Worker, 'log' | 'failed' | 'dying'>
  metrics: RelayMetrics
}

const passMs = 500
/** Events that were taken wait so long for others, to be settled together; so many do not wait. */
const settleMs = 20
const settleMax = 1000
/** When to look again: at the soonest, and while others are on their way. */
const lookMs = { least: 10, busy: 50 }
/** A relay that does not reach its broker for so long leaves its slots to others that may. */
const awayMs = 5000
/** Bytes of events in memory; one of each slot there may be above them. */
const bytesMax = 32 * 1024 * 1024

export function remoteRelayPass(options: RelayOptions): Pass {
  const { db, publisher, windowMax, worker, metrics } = options
  const relay = uuidv7()
  const slots = createSlots()
  const { held, count } = slots
  const leases = createLeases({ db, relay, slots })
  const running = new Set<string>()
  const faults: unknown[] = []
  let changed = Promise.withResolvers<void>()
  // All by this process's own clock.
  let [settledAt, lookAt] = [0, 0]
  let awaySince = Number.POSITIVE_INFINITY
  let [handled, roomMax, rowBytes] = [0, 0, 1024]
  let waitsForHorizon = false
  /** Grows while an older transaction goes on: it may be a long one. */
  let horizonMs = 0
  let stopping = false
  type Done = ReturnType<typeof slots.done>
  /** Settled, perhaps: the answer was lost. */
  let doubtful: Done = []

  const change = (): void => {
    changed.resolve()
    changed = Promise.withResolvers()
  }
  publisher.onChange(change)
  const asides = createAsides({ ...options, relay, room })

  /** How many may be sent. What was lost goes alone until it is answered: if one of it broke the connection, it shows. */
  function room(): number {
    if (!leases.areSure()) return 0
    const isUnsure = slots.unsure.size > 0 || asides.isUnsure()
    return (isUnsure ? 1 : windowMax) - count.sent - asides.sending()
  }

  /** Beside the rest, one of a kind at a time. What it throws ends the pass; the next begins anew. */
  function start(name: string, work: () => Promise<void>): void {
    if (running.has(name)) return
    running.add(name)
    work()
      .catch((error) => faults.push(error))
      .finally(() => {
        running.delete(name)
        change()
      })
  }

  async function renew(): Promise<void> {
    if (await leases.renew()) lookAt = 0
  }

  async function read(): Promise<void> {
    const from = leases.staying()
    const at = from.map(({ no, readTo }) => ({ slot: no, ...readTo }))
    const room = Math.min(2 * windowMax, bytesMax / rowBytes, roomMax - handled) - count.entries
    const slotMax = Math.max(1, Math.ceil(room / from.length))
    const bytes = Math.max(0, bytesMax - count.bytes) / from.length
    const rows = await readSlots(db, at, slotMax, Math.ceil(bytes))
    // What is over a limit stays where it is.
    const bySlot = Map.groupBy(rows.slice(0, Math.max(1, room)), ({ slot }) => slot)
    let bytesRead = 0
    for (const slot of from) {
      const read = (bySlot.get(slot.no) ?? []).map((row) => {
        const event = toOutgoing(row)
        bytesRead += event.body.length
        return { txid: row.txid, id: row.id, event }
      })
      // It may have been lost meanwhile.
      if (held.get(slot.no) === slot) slots.add(slot, read)
    }
    if (rows.length > 0) {
      rowBytes = Math.max(256, (rowBytes + bytesRead / rows.length) / 2)
      lookAt = 0
      horizonMs = 0
      return
    }
    waitsForHorizon = await waitsInSlots(db, at)
    horizonMs = nextLookMs(waitsForHorizon, horizonMs)
    lookAt = performance.now() + (waitsForHorizon ? horizonMs : lookMs.busy)
  }

  function send(): void {
    while (room() > 0 && !stopping && publisher.away() === undefined) {
      if (asides.isUnsure() && slots.unsure.size === 0) return
      const entry = slots.next()
      if (entry === undefined) return
      if (asides.isHopeless(entry.event.type)) {
        slots.refused(entry)
        continue
      }
      const since = performance.now()
      publisher.publish(entry.event, (verdict) => told(entry, verdict, since))
    }
  }

  function told(entry: Entry, verdict: Verdict, since: number): void {
    if (verdict.is === 'taken') {
      slots.taken(entry)
      asides.taken(entry.event.type)
      metrics.confirmed((performance.now() - since) / 1000)
    } else if (verdict.is === 'lost') slots.lost(entry)
    else {
      slots.refused(entry, verdict.why)
      asides.tellRefused(entry.event, verdict)
    }
    send()
    if (count.sent === 0 || count.known >= settleMax || count.entries < windowMax) change()
  }

  async function settle(): Promise<void> {
    settledAt = performance.now()
    // As it was, for what is settled twice is counted once only if it is the same.
    await settleThese(doubtful)
    doubtful = slots.done()
    await settleThese(doubtful)
    doubtful = []
  }

  async function settleThese(done: Done): Promise<void> {
    if (done.length === 0) return
    const moves = done.map(({ slot, entries }) => moveOf(slot, entries))
    const aside = done.flatMap(({ entries }) => entries.filter(({ is }) => is === 'aside'))
    const ours = await settleSlots(db, relay, moves, aside.map(toAside))
    for (const { slot, entries } of done) {
      if (held.get(slot.no) !== slot) continue
      if (!ours.has(slot.no)) {
        slots.drop(slot)
        continue
      }
      slots.forget(slot, entries)
      handled += entries.length
      metrics.relayed(entries.filter(({ is }) => is === 'taken').length)
    }
    if (aside.length > 0) asides.lookNow()
  }

  function startWork(): void {
    const now = performance.now()
    const isAway = publisher.away() !== undefined
    if (!isAway) awaySince = Number.POSITIVE_INFINITY
    else if (awaySince === Number.POSITIVE_INFINITY) awaySince = now
    if (now > awaySince + awayMs && count.sent === 0) {
      if (held.size > 0 && !running.has('settle')) start('renew', leases.leave)
    } else if (leases.isDue()) start('renew', renew)
    else if (leases.isGiving() && !running.has('settle')) start('renew', leases.giveUp)
    send()
    startSettling(now)
    if (!isAway && !running.has('settle') && !stopping) {
      asides.start([...held.values()], (work) => start('aside', work))
    }
    const isFull = count.entries >= windowMax || count.bytes > bytesMax / 2
    if (isAway || isFull || leases.staying().length === 0) return
    if (now >= lookAt && handled + count.entries < roomMax) start('read', read)
  }

  function startSettling(now: number): void {
    if (count.known === 0) return
    if (count.known >= settleMax || now >= settledAt + settleMs) start('settle', settle)
  }

  /** What was handled since the last report; what is settled between two passes is in the later one's. */
  function report(): number {
    const reported = handled
    handled = 0
    return reported
  }

  /** What the pass comes back with, if it is over and has handled nothing. */
  function outcome(until: number): Awaited<ReturnType<Pass>> | undefined {
    const now = performance.now()
    const isAway = publisher.away() !== undefined
    const isBusy = running.size > 0 || count.sent > 0 || count.known > 0
    if (!isBusy && (isAway || held.size === 0)) return { waitMs: 250 }
    if (!isBusy && count.entries === 0 && lookAt > now && !asides.isDue([...held.values()])) {
      return waitsForHorizon ? { waitMs: horizonMs } : 0
    }
    if (now < until && handled < roomMax) return undefined
    return { waitMs: 0 }
  }

  const pass: Pass = async (signal, handledMax) => {
    const until = performance.now() + passMs
    ;[roomMax, lookAt] = [handledMax, 0]
    signal.addEventListener('abort', change, { once: true })
    try {
      for (;;) {
        if (faults.length > 0) throw faults.splice(0)[0]
        if (signal.aborted) return report()
        const next = changed.promise
        startWork()
        const result = outcome(until)
        if (result !== undefined) return report() || result
        const timer = setTimeout(change, lookMs.least)
        await next
        clearTimeout(timer)
      }
    } finally {
      signal.removeEventListener('abort', change)
    }
  }

  /** Waits for the answers that are due, as long as the grace lasts. What has none is sent again by the next. */
  async function finish(): Promise<number> {
    stopping = true
    while ((count.sent > 0 || running.size > 0) && !worker.dying.aborted) {
      if (publisher.away() !== undefined && running.size === 0) break
      startSettling(performance.now())
      await Promise.race([changed.promise, sleep(settleMs)])
    }
    if (count.known > 0) await settle()
    await leases.leave()
    return report()
  }
  const wake = (): void => {
    lookAt = 0
    change()
  }
  return Object.assign(pass, { finish, wake })
}
