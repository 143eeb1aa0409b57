// What the event loader is made of, without a backend's name: a source, a page of its events, and the ports that fetch,
// store, lock and pace. The rules of a page stand here too (ids positive, 64 bit, strictly rising, past the cursor), and
// how long a source rests after a failure or while it has nothing new.

/** A remote system that has events. How it is asked stands in domain/sources.ts. */
export type Source = {
  name: string
  type: SourceType
  /** http(s) URL; for a file its path. */
  url: string
  /** Values may name variables of the environment: `Bearer ${env:SHOP_TOKEN}`. */
  headers: Readonly<Record<string, string>>
  afterParam: string
  limitParam: string
  /** One request, from its begin to the last byte, ms. */
  timeoutMs: number
  /** Least time between two requests, ms; never less than the loader's own. */
  gapMs: number
  /** How long it rests at most while it has nothing new, ms; undefined: the loader's setting. */
  idleMaxMs: number | undefined
  /** Ids behind the cursor that may still turn up; 0: none do. */
  overlap: number
}

export const sourceTypes = ['http', 'ndjson', 'file'] as const
export type SourceType = (typeof sourceTypes)[number]

/** Events as columns, since a page of a thousand objects costs more than all else: the nth has the nth of each. */
export type Events = {
  ids: BigInt64Array
  /** Where payloads lie: JSON in UTF-8, byte for byte as the source gave it. */
  body: Uint8Array
  /** Begin and end of each payload in `body`, two numbers an event. */
  spans: Uint32Array
}

export type Page = {
  events: Events
  /** There is more, for all it knows: the page is full. */
  more: boolean
  /** The newest id the source has, if it tells. */
  newestId: bigint | undefined
  /** To be called when the page is stored, or dropped: its memory is another's then. */
  free?(): void
}

/**
 * The source's fault: it answers badly, late or not at all. The message may be shown: it holds no payload, header or
 * secret. `restMs`: for how long it asked to be left alone.
 */
export class SourceFault extends Error {
  readonly restMs: number
  constructor(message: string, restMs = 0, options?: ErrorOptions) {
    super(message, options)
    this.name = 'SourceFault'
    this.restMs = restMs
  }
}

export type FetchOptions = {
  signal: AbortSignal
  /** Called right before the request leaves. @throws when it must not any more */
  sending(): void
}

export type EventFetcher = {
  /** The next events with an id above `afterId`, `limit` at most. @throws SourceFault */
  fetch(source: Source, afterId: bigint, limit: number, options: FetchOptions): Promise<Page>
  close?(): Promise<void>
}

/** Where a source stands, for one holder of it. */
export type Cursor = {
  /** Highest id that is stored; 0: none. */
  lastId: bigint
  /** What the next request asks after: `lastId`, or less while the overlap window is read again. */
  afterId: bigint
  /** Grows with each change of hands: who has a lower one than the store cannot append. */
  fence: bigint
  /** Failures in a row. */
  failures: number
  /** Since its last new event, ms. */
  quietMs: number
  paused: boolean
}

/** What the cursor's holder has lost: another instance has it, or people moved it. Nothing was stored. */
export class Fenced extends Error {
  constructor(source: string) {
    super(`${source} is in the hands of another instance, or was moved: nothing was stored`)
    this.name = 'Fenced'
  }
}

export type Appended = {
  /** For the next page. */
  cursor: Cursor
  /** Events that are new: all of them, but where a window is read again. */
  added: number
}

export type EventStore = {
  /** The cursor, in the hands of `holder` from now on. Undefined: nobody knows the source. */
  lastKnownId(source: string, holder: string): Promise<Cursor | undefined>
  /**
   * Stores pages that follow one another and moves the cursor, both or neither.
   * @throws Fenced, SourceFault
   */
  append(source: Source, cursor: Cursor, pages: readonly Page[]): Promise<Appended>
  /** The source answered, and had nothing. */
  nothing(source: string, cursor: Cursor, newestId: bigint | undefined): Promise<void>
  /** Notes a failure. @returns failures in a row, this one too; undefined: fenced */
  failed(source: string, cursor: Cursor, why: string): Promise<number | undefined>
}

export type Lock = {
  /** By performance.now(): after that somebody else may have it. */
  until: number
  release(): Promise<void>
}

export type LockFactory = {
  /** Never waits. Undefined: another has it. */
  tryLock(source: string, leaseMs: number): Promise<Lock | undefined>
}

/** Keeps the time between requests to a source, over all instances, by one clock that is none of theirs. */
export type SourceGate = {
  /**
   * How long it stays closed, ms; 0: open. Never waits. What the gate has never heard of, or forgot in a crash, is taken
   * for closed for `unknownMs`: somebody may be in the middle of a request.
   */
  waitMs(source: string, unknownMs: number): Promise<number>
  /** A request is over: closed for `restMs` from now. Asked for by who has the lock, before it is released. */
  close(source: string, restMs: number): Promise<void>
}

export const idMax = 2n ** 63n - 1n

/** Where the overlap window begins: it is read again from there. */
export const overlapBegin = (lastId: bigint, overlap: number): bigint =>
  lastId > BigInt(overlap) ? lastId - BigInt(overlap) : 0n

export const noEvents: Events = {
  ids: new BigInt64Array(0),
  body: new Uint8Array(0),
  spans: new Uint32Array(0),
}

export const countOf = ({ ids }: Events): number => ids.length

/** Undefined: there is none. */
export const lastIdOf = ({ ids }: Events): bigint | undefined => ids.at(-1)

/** The first of them. */
export const firstOf = ({ ids, body, spans }: Events, count: number): Events => ({
  ids: ids.subarray(0, count),
  body,
  spans: spans.subarray(0, 2 * count),
})

/** Those whose place `isKept`. */
export function someOf({ ids, body, spans }: Events, isKept: (id: bigint) => boolean): Events {
  const places = Array.from(ids.keys()).filter((i) => isKept(ids[i] as bigint))
  return {
    ids: ids.filter((id) => isKept(id)),
    body,
    spans: Uint32Array.from(places.flatMap((i) => [spans[2 * i] ?? 0, spans[2 * i + 1] ?? 0])),
  }
}

/** Gathers events of one body. */
export function createGatherer(body: Uint8Array) {
  let ids = new BigInt64Array(256)
  let spans = new Uint32Array(512)
  let count = 0
  return {
    add(id: bigint, from: number, to: number): void {
      if (count === ids.length) {
        const [before, places] = [ids, spans]
        ids = new BigInt64Array(4 * count)
        spans = new Uint32Array(8 * count)
        ids.set(before)
        spans.set(places)
      }
      ids[count] = id
      spans[2 * count] = from
      spans[2 * count + 1] = to
      count++
    },
    get count() {
      return count
    },
    events: (): Events => firstOf({ ids, body, spans }, count),
  }
}

/** @throws SourceFault when the page breaks the rules; it is refused whole */
export function checkPage({ events: { ids } }: Page, afterId: bigint): void {
  let last = afterId
  for (let i = 0; i < ids.length; i++) {
    const id = ids[i] as bigint
    if (id <= last) throw new SourceFault(wrongOrder(ids, i, afterId))
    last = id
  }
}

function wrongOrder(ids: BigInt64Array, i: number, afterId: bigint): string {
  const [id, before] = [ids[i] as bigint, ids[i - 1]]
  const where = `event ${i + 1} of ${ids.length}`
  if (before === undefined || id <= afterId) {
    return `${where} has id ${id}, and events after ${afterId} were asked for: only higher ids may come`
  }
  const fault = id === before ? `has id ${id} once more` : `has id ${id} after ${before}`
  return `${where} ${fault}: ids must rise`
}

const backoff = { firstMs: 1000, mostMs: 60_000 }

/** The rest after `failures` in a row: 1 s, doubling up to 60 s, a quarter of it random; or what the source asked for. */
export const failureRestMs = (failures: number, random: number, askedMs = 0): number =>
  Math.max(
    askedMs,
    Math.min(backoff.mostMs, backoff.firstMs * 2 ** Math.min(failures - 1, 16)) *
      (0.75 + random / 4),
  )

/** A source that says more than that is taken for mistaken. */
export const askedRestMaxMs = 3_600_000

/**
 * The rest of a source that had nothing: a tenth of the time since its last event, from `leastMs` to `mostMs`. What was
 * silent for ten seconds is asked once a second.
 */
export const idleRestMs = (quietMs: number, leastMs: number, mostMs: number): number =>
  Math.max(leastMs, Math.min(mostMs, quietMs / 10))
