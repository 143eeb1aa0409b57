// The core of the event loader: whose turn it is, and what a turn does. It knows sources, a store, locks and a gate by
// their ports only. A turn: try the lock, try the gate (neither is waited for), read the cursor, fetch, check, append under
// the fence, release (kind b: no transaction is open while the source is asked). Rounds go over all sources in a ring;
// one that hangs takes a place among the slow ones and holds nobody up. A source's failure is its own.

import { setTimeout as sleep } from 'node:timers/promises'
import {
  type Cursor,
  checkPage,
  countOf,
  type EventFetcher,
  type EventStore,
  Fenced,
  failureRestMs,
  idleRestMs,
  type Lock,
  type LockFactory,
  lastIdOf,
  overlapBegin,
  type Page,
  type Source,
  SourceFault,
  type SourceGate,
  type SourceType,
} from '../../domain/loader.ts'
import type { Pass } from '../loop.ts'

export type LoaderEvents = {
  loaded(source: string, events: number): void
  /** `seconds`: from the request's begin to the last byte. */
  fetched(events: number, seconds: number): void
  appended(seconds: number): void
  failed(source: string, why: string, failures: number, restMs: number): void
  /** Works again after so many failures. */
  mended(source: string, failures: number): void
  fenced(source: string): void
}

export type LoaderOptions = {
  fetchers: Readonly<Record<SourceType, EventFetcher>>
  locks: LockFactory
  gate: SourceGate
  store: EventStore
  /** This instance, for people. */
  holder: string
  /** Between two requests to one source, over all instances, ms. */
  gapMs: number
  idleMaxMs: number
  /** Events of one request. */
  batchMax: number
  /** Requests at once. */
  concurrency: number
  on: LoaderEvents
  /** Aborts when requests under way must be dropped. */
  dying: AbortSignal
  random?: () => number
}

/** A lease is longer than its request by this: what comes before it, and a stalled process, ms. */
const leaseMarginMs = 4000
/** And outlives it by this, or by the gap where that is more: who takes over may ask at once. */
const endMarginMs = 1000
/** An idle round sleeps so long, and so does a source that has nothing where there is no gap. */
export const idleMs = 100
/** A turn begins so much before its gate should open, to have lock and cursor by then; that little is waited for. */
const leadMs = 25
/** A turn that takes longer counts among the slow ones. */
const slowMs = 1000
const pausedRestMs = 1000
/** Pages of one turn, where no gap parts them. */
const pagesMax = 64
/** Of them, fetched and not yet stored. */
const pendingMax = 8

/** A source as this instance sees it. Times by performance.now(). */
type Seat = {
  source: Source
  /** Nobody ever asked it, as far as is known. */
  isNew: boolean
  turn: Promise<void> | undefined
  beganAt: number
  /** Events that its turn may bring. */
  room: number
  /** It is pointless to try before. */
  notBefore: number
  /** Its gate was closed by us: at notBefore it should be open. */
  isExpected: boolean
  isSlow: boolean
  /** There may be more to load. */
  isHungry: boolean
}

export type Loader = {
  /** The sources from now on. Those in hand are finished. `fresh`: names that nobody ever asked. */
  setSources(sources: readonly Source[], fresh?: ReadonlySet<string>): void
  /** One round: each source that may be asked gets its turn. @returns events stored when all of these turns are over */
  runOnce(signal: AbortSignal): Promise<number>
  /** Rounds until the signal, each source as soon as it may be asked. */
  run(signal: AbortSignal): Promise<void>
  /** The same for a while, for the loop of a worker. */
  pass: Pass
}

export function createLoader(options: LoaderOptions): Loader {
  const { fetchers, locks, gate, store, holder, batchMax, concurrency, on, dying } = options
  const { random = Math.random } = options
  const seats = new Map<string, Seat>()
  /** In the order of their turns: who had one goes to the end. */
  let ring: Seat[] = []
  const inHand = new Set<Seat>()
  const faults: unknown[] = []
  let stored = 0
  /** Of those, what a pass has told. */
  let told = 0
  let onEnd = () => {}

  const gapOf = ({ gapMs }: Source): number => Math.max(gapMs, options.gapMs)

  /** What must be left of the lease when a request is sent. */
  const neededOf = (source: Source): number =>
    source.timeoutMs + Math.max(endMarginMs, gapOf(source))

  const leaseOf = (source: Source): number => leaseMarginMs + neededOf(source)

  /** Of one turn. */
  const pagesOf = (source: Source): number => (gapOf(source) > 0 ? 1 : pagesMax)

  function setSources(sources: readonly Source[], fresh: ReadonlySet<string> = new Set()): void {
    const names = new Set(sources.map(({ name }) => name))
    for (const name of seats.keys()) if (!names.has(name)) seats.delete(name)
    for (const source of sources) {
      const seat = seats.get(source.name)
      if (seat) {
        seat.source = source
        continue
      }
      seats.set(source.name, {
        source,
        isNew: fresh.has(source.name),
        turn: undefined,
        beganAt: 0,
        room: 0,
        notBefore: 0,
        isExpected: false,
        isSlow: false,
        isHungry: true,
      })
    }
    const kept = ring.filter((seat) => seats.get(seat.source.name) === seat)
    const known = new Set(kept)
    ring = [...kept, ...[...seats.values()].filter((seat) => !known.has(seat))]
  }

  /** Begins the turn of each source that is due, as far as there is room. */
  function begin(signal: AbortSignal, roomMax: number): Seat[] {
    const now = performance.now()
    let [quick, slow, room] = [0, 0, roomMax]
    for (const seat of inHand) {
      room -= seat.room
      if (seat.isSlow || now - seat.beganAt > slowMs) slow++
      else quick++
    }
    const begun: Seat[] = []
    for (const seat of ring) {
      if (seat.turn !== undefined || seat.notBefore > now || room <= 0) continue
      if (seat.isSlow ? slow >= concurrency / 2 : quick >= concurrency) continue
      if (seat.isSlow) slow++
      else quick++
      seat.room = Math.min(batchMax * pagesOf(seat.source), room)
      room -= seat.room
      begun.push(seat)
    }
    if (begun.length === 0) return begun
    const turned = new Set(begun)
    ring = [...ring.filter((seat) => !turned.has(seat)), ...begun]
    for (const seat of begun) {
      seat.beganAt = now
      inHand.add(seat)
      seat.turn = take(seat, signal)
    }
    return begun
  }

  /** Never rejects: what is nobody's fault but the backend's is thrown by the round. */
  async function take(seat: Seat, signal: AbortSignal): Promise<void> {
    try {
      await turn(seat, signal)
    } catch (error) {
      rest(seat, idleMs)
      if (!dying.aborted) faults.push(error)
    } finally {
      seat.isSlow = performance.now() - seat.beganAt > slowMs
      seat.turn = undefined
      seat.room = 0
      inHand.delete(seat)
      onEnd()
    }
  }

  function rest(seat: Seat, ms: number, isExpected = false): void {
    seat.notBefore = performance.now() + ms
    seat.isExpected = isExpected
  }

  const gateWait = async (seat: Seat): Promise<number> => {
    const { source, isNew } = seat
    const waitMs = await gate.waitMs(source.name, isNew ? 0 : leaseOf(source))
    seat.isNew = false
    return waitMs
  }

  /** A gate that opens in a moment is waited for: to give the lock back and come again would be more. */
  async function untilOpen(waitMs: number): Promise<number> {
    if (waitMs === 0 || waitMs > 2 * leadMs) return waitMs
    // Timers may be early by a part of a millisecond.
    await sleep(Math.ceil(waitMs) + 1)
    return 0
  }

  async function turn(seat: Seat, signal: AbortSignal): Promise<void> {
    const { source } = seat
    if (!seat.isExpected) {
      // Spares a lock that would be given back at once.
      const waitMs = await gateWait(seat)
      if (waitMs > leadMs) return rest(seat, waitMs - leadMs)
    }
    const lock = await locks.tryLock(source.name, leaseOf(source))
    if (lock === undefined) {
      seat.isHungry = false
      return rest(seat, Math.max(idleMs, gapOf(source)))
    }
    const [waitMs, cursor] = await Promise.all([
      gateWait(seat).then(untilOpen),
      store.lastKnownId(source.name, holder),
    ])
    if (waitMs > 0) rest(seat, waitMs)
    else if (cursor === undefined || cursor.paused) {
      seat.isHungry = false
      rest(seat, pausedRestMs)
    } else await load(seat, lock, cursor, signal)
    // Not when the gate could not be closed: then the lease is what keeps others away.
    await lock.release()
  }

  /** The gate is closed when the request is over, while the page is still being stored. */
  async function load(seat: Seat, lock: Lock, first: Cursor, signal: AbortSignal): Promise<void> {
    const { source } = seat
    const run = newRun(first)
    let fault: unknown
    let closing: Promise<void> | undefined
    try {
      await fetchPages(seat, lock, run, signal)
      if (!run.wasAsked) return rest(seat, idleMs)
      const { hasEvents } = run
      const restMs = hasEvents ? gapOf(source) : idleRestOf(source, first)
      closing = close(seat, restMs)
      closing.catch(() => {})
      await run.appending
      if (!hasEvents) await nothing(seat, run)
      else if (run.cursor.quietMs > 0) await close(seat, idleRestOf(source, run.cursor))
      seat.isHungry = hasEvents && run.cursor.quietMs === 0
      if (first.failures > 0) on.mended(source.name, first.failures)
    } catch (error) {
      fault = error
    }
    await closing
    if (fault !== undefined) await failed(seat, run, fault)
  }

  const idleRestOf = (source: Source, { quietMs }: Cursor): number => {
    const gapMs = gapOf(source)
    const mostMs = source.idleMaxMs ?? options.idleMaxMs
    return idleRestMs(quietMs, Math.max(gapMs, idleMs), mostMs)
  }

  /** One page; where there is no gap many, the next ones fetched while the last are stored. */
  async function fetchPages(seat: Seat, lock: Lock, run: Run, signal: AbortSignal): Promise<void> {
    const { source } = seat
    const pages = pagesOf(source)
    // A window that the source had before it lost its overlap is not read on.
    let afterId = source.overlap > 0 ? run.cursor.afterId : run.cursor.lastId
    let room = seat.room
    for (let i = 0; i < pages && room > 0; i++) {
      if (signal.aborted || lock.until - performance.now() < neededOf(source)) return
      const page = await fetchPage(seat, lock, run, afterId, room)
      // Without the page before it, it would move the cursor past what is not stored.
      if (run.isBroken) return page.free?.()
      if (countOf(page.events) === 0 && !endsWindow(source, run.cursor)) return page.free?.()
      run.hasEvents = true
      run.pending.push(page)
      if (!run.isAppending) {
        run.appending = append(source, run)
        run.appending.catch(() => {})
      }
      if (run.pending.length >= pendingMax) await run.appending
      if (!page.more || source.overlap > 0) return
      afterId = lastIdOf(page.events) ?? afterId
      room -= countOf(page.events)
    }
  }

  /** An empty page is news where it is the end of a window. */
  const endsWindow = ({ overlap }: Source, { afterId, lastId }: Cursor): boolean =>
    overlap > 0 && afterId !== overlapBegin(lastId, overlap)

  async function fetchPage(
    { source }: Seat,
    lock: Lock,
    run: Run,
    afterId: bigint,
    room: number,
  ): Promise<Page> {
    const begun = performance.now()
    const page = await fetchers[source.type].fetch(source, afterId, Math.min(batchMax, room), {
      signal: dying,
      sending() {
        if (lock.until - performance.now() < neededOf(source)) throw new TooLate()
        run.wasAsked = true
      },
    })
    on.fetched(countOf(page.events), (performance.now() - begun) / 1000)
    try {
      checkPage(page, afterId)
    } catch (error) {
      page.free?.()
      throw error
    }
    run.newestId = page.newestId ?? run.newestId
    return page
  }

  /** Stores what is there, and then what has come meanwhile: the slower the store, the larger its pages. */
  async function append(source: Source, run: Run): Promise<void> {
    run.isAppending = true
    try {
      while (run.pending.length > 0) {
        const pages = run.pending.splice(0)
        const begun = performance.now()
        const appended = await store.append(source, run.cursor, pages).finally(() => {
          for (const page of pages) page.free?.()
        })
        on.appended((performance.now() - begun) / 1000)
        run.cursor = appended.cursor
        stored += appended.added
        on.loaded(source.name, appended.added)
      }
    } catch (error) {
      run.isBroken = true
      for (const page of run.pending.splice(0)) page.free?.()
      throw error
    } finally {
      run.isAppending = false
    }
  }

  /** What is known already is not written down each time. */
  const notedAt = new WeakMap<Seat, number>()
  async function nothing(seat: Seat, { cursor, newestId, wasAsked }: Run): Promise<void> {
    if (!wasAsked) return
    const now = performance.now()
    const isFresh = now - (notedAt.get(seat) ?? Number.NEGATIVE_INFINITY) < noteEveryMs
    if (isFresh && cursor.failures === 0) return
    notedAt.set(seat, now)
    await store.nothing(seat.source.name, cursor, newestId)
  }

  async function close(seat: Seat, restMs: number): Promise<void> {
    if (restMs > 0) await gate.close(seat.source.name, restMs)
    rest(seat, restMs > 4 * leadMs ? restMs - leadMs : restMs, true)
  }

  async function failed(seat: Seat, run: Run, error: unknown): Promise<void> {
    const { name } = seat.source
    seat.isHungry = false
    await run.appending.catch(() => {})
    if (error instanceof TooLate) {
      return run.wasAsked ? await close(seat, gapOf(seat.source)) : rest(seat, idleMs)
    }
    if (error instanceof Fenced) {
      on.fenced(name)
      return await close(seat, gapOf(seat.source))
    }
    if (!(error instanceof SourceFault)) {
      await close(seat, gapOf(seat.source))
      if (dying.aborted) return
      throw error
    }
    const failures = await store.failed(name, run.cursor, error.message)
    if (failures === undefined) {
      on.fenced(name)
      return await close(seat, gapOf(seat.source))
    }
    const restMs = Math.max(gapOf(seat.source), failureRestMs(failures, random(), error.restMs))
    await close(seat, restMs)
    on.failed(name, error.message, failures, restMs)
  }

  /** Until the next is due, ms; a turn that ends may make one due earlier. */
  function untilDue(): number {
    const now = performance.now()
    let least = idleMs
    for (const { turn, notBefore } of seats.values()) {
      if (turn === undefined) least = Math.min(least, notBefore - now)
    }
    return Math.max(1, Math.ceil(least))
  }

  async function untilChange(signal: AbortSignal): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>()
    const timer = setTimeout(resolve, untilDue())
    // Turns that end together are one change.
    onEnd = () => setImmediate(resolve)
    const stop = () => resolve()
    signal.addEventListener('abort', stop, { once: true })
    await promise
    signal.removeEventListener('abort', stop)
    clearTimeout(timer)
    onEnd = () => {}
  }

  /** What was stored since the last time it was told. */
  function tell(): number {
    const handled = stored - told
    told = stored
    return handled
  }

  const pass: Pass = async (signal, handledMax) => {
    const until = performance.now() + passMs
    while (!signal.aborted) {
      if (faults.length > 0) throw faults.splice(0)[0]
      begin(signal, handledMax - (stored - told))
      if (performance.now() >= until || stored - told >= handledMax) break
      await untilChange(signal)
    }
    const handled = tell()
    if (handled > 0) return handled
    return [...seats.values()].some(({ isHungry }) => isHungry) ? { waitMs: 1 } : 0
  }

  async function finish(): Promise<number> {
    await Promise.all([...inHand].map(({ turn }) => turn))
    return tell()
  }

  return {
    setSources,
    pass: Object.assign(pass, { finish }),
    async runOnce(signal) {
      const before = stored
      await Promise.all(begin(signal, Number.POSITIVE_INFINITY).map(({ turn }) => turn))
      if (faults.length > 0) throw faults.splice(0)[0]
      return stored - before
    },
    async run(signal) {
      while (!signal.aborted) await pass(signal, Number.POSITIVE_INFINITY)
      await finish()
    },
  }
}

const passMs = 500
const noteEveryMs = 5000

/** What a turn has come to. */
type Run = {
  /** Of what is stored. */
  cursor: Cursor
  /** Fetched, and not yet on their way into the store. */
  pending: Page[]
  appending: Promise<void>
  isAppending: boolean
  /** An append failed: nothing that follows can be stored. */
  isBroken: boolean
  hasEvents: boolean
  newestId: bigint | undefined
  wasAsked: boolean
}

const newRun = (cursor: Cursor): Run => ({
  cursor,
  pending: [],
  appending: Promise.resolve(),
  isAppending: false,
  isBroken: false,
  hasEvents: false,
  newestId: undefined,
  wasAsked: false,
})

/** The lease is nearly over: another instance may ask the source soon. */
class TooLate extends Error {}
