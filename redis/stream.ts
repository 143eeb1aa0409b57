// A Redis stream as a broker: events are added to one stream, a consumer group reads them, and what every group has
// acknowledged is trimmed. Redis keeps them as safe as it is told to (appendonly, appendfsync).

import { answered, type RedisClient } from './open.ts'

/** Field and value in turn. */
export type StreamFields = readonly (string | Buffer)[]
export type StreamEntry = { id: string; fields: Map<string, Buffer> }

export type EventStream = {
  /** @throws RedisUnavailable, also when the key is something else */
  check(): Promise<void>
  /** Appended, as far as Redis says so. @throws RedisUnavailable */
  append(fields: StreamFields): Promise<void>
  /** Made where it is not there, before the first entry. */
  ensureGroup(group: string): Promise<void>
  /** The next that nobody has, waiting up to `waitMs`. */
  read(group: string, consumer: string, max: number, waitMs: number): Promise<StreamEntry[]>
  /** Those that another consumer has had for `idleMs` without a word. */
  claim(group: string, consumer: string, max: number, idleMs: number): Promise<StreamEntry[]>
  ack(group: string, ids: readonly string[]): Promise<void>
  /** Removes the consumer unless it has entries in hand. */
  leave(group: string, consumer: string): Promise<void>
  /** Removes consumers that were not heard of for `idleMs` and have nothing in hand: they died. */
  sweep(group: string, idleMs: number): Promise<void>
  /** Trims what all groups have acknowledged; nothing while there is none. */
  trim(): Promise<void>
}

const answerMs = 5000

type RawEntry = [Buffer, Buffer[] | null] | null

/** Not in ioredis's types. */
type Claiming = { xautoclaimBuffer(...args: (string | number)[]): Promise<unknown> }

export function openStream(redis: RedisClient, key: string): EventStream {
  const claiming = redis as unknown as Claiming
  const ask = <T>(reply: Promise<unknown>, ms = answerMs): Promise<T> =>
    answered(reply as Promise<T>, ms)

  return {
    async check() {
      await ask(redis.xlen(key))
    },

    async append(fields) {
      await ask(redis.xadd(key, '*', ...fields))
    },

    async ensureGroup(group) {
      try {
        await ask(redis.xgroup('CREATE', key, group, '0', 'MKSTREAM'))
      } catch (error) {
        if (!/BUSYGROUP/.test((error as Error).message)) throw error
      }
    },

    async read(group, consumer, max, waitMs) {
      const block = ['BLOCK', waitMs, 'STREAMS', key, '>'] as const
      const reply = redis.xreadgroupBuffer('GROUP', group, consumer, 'COUNT', max, ...block)
      const streams = await ask<[Buffer, RawEntry[]][] | null>(reply, waitMs + answerMs)
      return toEntries(streams?.[0]?.[1] ?? [])
    },

    async claim(group, consumer, max, idleMs) {
      const reply = claiming.xautoclaimBuffer(key, group, consumer, idleMs, '0', 'COUNT', max)
      const [, entries, gone = []] = await ask<[Buffer, RawEntry[], Buffer[]?]>(reply)
      if (gone.length > 0) await ask(redis.xack(key, group, ...gone))
      return toEntries(entries)
    },

    async ack(group, ids) {
      if (ids.length > 0) await ask(redis.xack(key, group, ...ids))
    },

    async leave(group, consumer) {
      const pending = await ask<unknown[]>(redis.xpending(key, group, '-', '+', 1, consumer))
      if (pending.length === 0) await ask(redis.xgroup('DELCONSUMER', key, group, consumer))
    },

    async sweep(group, idleMs) {
      const consumers = await ask<(string | number)[][]>(redis.xinfo('CONSUMERS', key, group))
      for (const raw of consumers) {
        // Names and values in turn, and a value may be like a name.
        const field = (name: string) => raw.find((_, i) => i % 2 === 1 && raw[i - 1] === name)
        if (Number(field('pending')) > 0 || Number(field('idle')) < idleMs) continue
        await ask(redis.xgroup('DELCONSUMER', key, group, String(field('name'))))
      }
    },

    async trim() {
      const groups = await ask<string[][]>(redis.xinfo('GROUPS', key))
      const needed = await Promise.all(groups.map((raw) => firstNeeded(raw)))
      const [first] = needed.sort(byId)
      if (first !== undefined) await ask(redis.xtrim(key, 'MINID', '~', first))
    },
  }

  /** The oldest entry in hand, or else the last one given out. */
  async function firstNeeded(raw: readonly string[]): Promise<string> {
    const field = (name: string) => String(raw[raw.indexOf(name) + 1])
    const [, oldest] = await ask<[number, string | null]>(redis.xpending(key, field('name')))
    return oldest ?? field('last-delivered-id')
  }
}

/** Entries that were deleted come without fields. */
const toEntries = (raw: readonly RawEntry[]): StreamEntry[] =>
  raw.flatMap((entry) => (entry?.[1] ? [{ id: entry[0].toString(), fields: toMap(entry[1]) }] : []))

const toMap = (raw: readonly Buffer[]): Map<string, Buffer> =>
  new Map(
    Array.from({ length: raw.length >> 1 }, (_, i) => [
      String(raw[2 * i]),
      raw[2 * i + 1] as Buffer,
    ]),
  )

/** `ms-seq`, by number. */
function byId(a: string, b: string): number {
  const [aMs = 0, aSeq = 0] = a.split('-').map(Number)
  const [bMs = 0, bSeq = 0] = b.split('-').map(Number)
  return aMs - bMs || aSeq - bSeq
}
