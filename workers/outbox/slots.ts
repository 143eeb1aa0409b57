// What a relay has in memory of the slots it holds: the events it has read and not settled, which of them may be sent,
// and how far each slot is done. Of one subject one event is sent at a time: the next leaves when the broker has taken
// it, so that a refusal never lets a later one pass. No I/O.

import type { Aside } from '../../db/aside.ts'
import type { Move, OutboxRow, Position } from '../../db/relay.ts'
import type { Outgoing } from '../../domain/broker.ts'
import { envelopeOf } from '../../domain/events.ts'

export type Entry = Position & {
  slot: Slot
  event: Outgoing
  /** `aside`: refused, or behind one of its subject that was. */
  is: 'waiting' | 'sent' | 'taken' | 'aside'
  /** Why it was refused. */
  error?: string
}

export type Slot = {
  no: number
  leaseNo: string
  /** Read, not settled, in their order. */
  entries: Entry[]
  readTo: Position
  /** By subject: the one that is ready or sent, then those behind it. */
  lines: Map<string, Entry[]>
  /** Subjects that have events aside, in the database or on the way there. */
  aside: Set<string>
  /** To be given up: nothing more is read, and what was not sent is dropped. */
  leaving: boolean
}

export type Slots = ReturnType<typeof createSlots>

export function createSlots() {
  const held = new Map<number, Slot>()
  /** May be sent, the oldest first; `first` is where they begin. */
  let ready: Entry[] = []
  let first = 0
  /** Lost, and to be sent again before the others. */
  let again: Entry[] = []
  /** Lost, and not answered since: one of them may be what breaks the connection. */
  const unsure = new Set<Entry>()
  /** `known`: their fate is, and they are not settled. */
  const count = { entries: 0, sent: 0, known: 0, bytes: 0 }

  const isHeld = (slot: Slot): boolean => held.get(slot.no) === slot

  function add(slot: Slot, rows: readonly (Position & { event: Outgoing })[]): void {
    for (const { txid, id, event } of rows) {
      const entry: Entry = { txid, id, slot, event, is: 'waiting' }
      slot.entries.push(entry)
      slot.readTo = { txid, id }
      count.entries++
      count.bytes += event.body.length
      if (slot.aside.has(event.subject)) {
        entry.is = 'aside'
        count.known++
        continue
      }
      const line = slot.lines.get(event.subject)
      if (line === undefined) {
        slot.lines.set(event.subject, [entry])
        ready.push(entry)
      } else line.push(entry)
    }
  }

  /** Whether `next` may have one. */
  const isReady = (): boolean => again.length > 0 || first < ready.length

  /** The next to send; it counts as sent. */
  function next(): Entry | undefined {
    for (;;) {
      const entry = again.shift() ?? nextReady()
      if (entry === undefined) return undefined
      if (!isHeld(entry.slot) || entry.slot.leaving) {
        unsure.delete(entry)
        continue
      }
      entry.is = 'sent'
      count.sent++
      return entry
    }
  }

  function nextReady(): Entry | undefined {
    const entry = ready[first]
    if (entry === undefined) {
      ready = []
      first = 0
      return undefined
    }
    first++
    if (first > 4096 && first * 2 > ready.length) {
      ready = ready.slice(first)
      first = 0
    }
    return entry
  }

  function taken(entry: Entry): void {
    count.sent--
    unsure.delete(entry)
    entry.is = 'taken'
    if (!isHeld(entry.slot)) return
    count.known++
    const { lines } = entry.slot
    const line = lines.get(entry.event.subject)
    line?.shift()
    const follower = line?.[0]
    if (follower !== undefined) ready.push(follower)
    else lines.delete(entry.event.subject)
  }

  /** It goes aside, with those behind it; without `why` only to wait there. */
  function refused(entry: Entry, why?: string): void {
    count.sent--
    unsure.delete(entry)
    if (why !== undefined) entry.error = why
    if (!isHeld(entry.slot)) return
    const { lines, aside } = entry.slot
    const { subject } = entry.event
    aside.add(subject)
    const line = lines.get(subject) ?? []
    for (const behind of line) behind.is = 'aside'
    count.known += line.length
    lines.delete(subject)
  }

  /** Its connection broke: it is sent again, before all others. */
  function lost(entry: Entry): void {
    count.sent--
    entry.is = 'waiting'
    if (!isHeld(entry.slot)) return
    again.push(entry)
    unsure.add(entry)
  }

  /** The first events of each slot whose fate is known. */
  function done(): { slot: Slot; entries: Entry[] }[] {
    return [...held.values()].flatMap((slot) => {
      const end = slot.entries.findIndex(({ is }) => is === 'waiting' || is === 'sent')
      const entries = slot.entries.slice(0, end < 0 ? slot.entries.length : end)
      return entries.length === 0 ? [] : [{ slot, entries }]
    })
  }

  /** Settled in the database. */
  function forget(slot: Slot, entries: readonly Entry[]): void {
    slot.entries = slot.entries.slice(entries.length)
    for (const { event, is } of entries) {
      count.bytes -= event.body.length
      if (is === 'taken' || is === 'aside') count.known--
    }
    count.entries -= entries.length
  }

  function hold(lease: Position & { slot: number; leaseNo: string }): Slot {
    const { slot: no, leaseNo, txid, id } = lease
    const slot: Slot = {
      no,
      leaseNo,
      entries: [],
      readTo: { txid, id },
      lines: new Map(),
      aside: new Set(),
      leaving: false,
    }
    held.set(no, slot)
    return slot
  }

  /** It is not ours any more: what was sent is somebody else's to send again. */
  function drop(slot: Slot): void {
    if (!isHeld(slot)) return
    held.delete(slot.no)
    again = again.filter((entry) => entry.slot !== slot)
    for (const entry of slot.entries) unsure.delete(entry)
    forget(slot, slot.entries.slice())
  }

  return { held, count, unsure, add, isReady, next, taken, refused, lost, done, forget, hold, drop }
}

/** How far a slot is settled when these are. */
export function moveOf(slot: Slot, entries: readonly Entry[]): Move {
  const { txid, id } = entries.at(-1) as Entry
  return { slot: slot.no, leaseNo: slot.leaseNo, txid, id, count: entries.length }
}

export const toAside = ({ slot, txid, id, event, error }: Entry): Aside => ({
  slot: slot.no,
  subject: event.subject,
  txid,
  id,
  messageId: event.id,
  body: event.body.toString(),
  ...(error === undefined ? {} : { error }),
})

/** Its data stays the text it is. */
export function toOutgoing(row: OutboxRow): Outgoing {
  const head = JSON.stringify(envelopeOf(row))
  return {
    id: row.messageId,
    type: row.type,
    subject: row.subject,
    body: Buffer.from(`${head.slice(0, -1)},"data":${row.data}}`),
    ...(row.traceparent === null ? {} : { traceparent: row.traceparent }),
  }
}
