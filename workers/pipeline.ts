// Keeps a worker's lanes busy with the jobs of one queue: the next are claimed while those in hand run. As a pass it
// comes back about every second with the number of jobs settled meanwhile, while others may still be in hand; `finish`
// gives back what was not begun and waits for the rest. A job that was in hand when its worker died runs alone.

import type { Job, Jobs, Lost } from '../db/jobs.ts'
import { openRates } from '../db/rates.ts'
import type { Db } from '../db/schema.ts'
import { heartbeatSeconds, type QueueName, queueOf } from '../domain/queues.ts'
import type { Rate, Rates } from '../domain/rates.ts'
import { untilSaid } from './acks.ts'
import { count } from './doing.ts'
import { Held } from './held.ts'
import type { Pass } from './loop.ts'
import type { Worker } from './worker.ts'

export type Runtime = {
  jobs: Jobs
  db: Db
  queue: QueueName
  /** Jobs claimed at once, at most. */
  batchMax: number
  worker: Pick<Worker, 'log' | 'failed' | 'dying'>
  /** Jobs begun a second over all workers. Left out: what the queue says, or no limit. */
  rate?: Rate | undefined
  /** Where it is counted. Left out: in Postgres. */
  rates?: Rates | undefined
  /** Jobs in hand at most, now; 0 claims none until it is more. Left out: as many as keep the lanes busy. */
  room?: (() => number) | undefined
}

export type PipelineOptions = Runtime & {
  lanes: number
  /** Jobs one lane takes at once. */
  takeMax: number
  /**
   * Does them. `settle` is called for each when the database knows what became of it, at the latest soon after: a lane
   * is free again when this resolves. @throws what kept the database from knowing
   */
  run(held: Held[], settle: Settle): Promise<void>
}

/** The jobs are in hand no more. */
export type Settle = (jobs: readonly Job[], fault?: { error: unknown }) => void

const passMs = 1000
/** While some are in hand and the queue had no more: when to look again. A wake-up shortens it. */
const lookAgainMs = 250
const suspectsEveryMs = 1000
const claimsAtOnce = 2
/** Of the time that a job is given from its claim, what it may wait for a lane: the rest is its own. */
const waitShare = 0.5
/** Time to give a job back before it is taken away. */
const marginMs = 1000

export function createPipeline(options: PipelineOptions): Pass {
  const { jobs, db, queue, batchMax, worker, lanes, takeMax } = options
  const expireMs = (queueOf(queue)?.expireInSeconds ?? 60) * 1000 - marginMs
  const rate = options.rate ?? rateOf(queue)
  const rates = options.rates ?? openRates(db)
  const room = options.room ?? (() => Number.POSITIVE_INFINITY)
  const buffer: Held[] = []
  const inHand = new Set<Job>()
  const running = new Set<Held>()
  const faults: unknown[] = []
  let changed = Promise.withResolvers<void>()
  let [busy, claiming, asked, settled] = [0, 0, 0, 0]
  // How long the lanes took to begin what was there, and how long the last claim took.
  let [begun, busyMs, filledAt, claimMs] = [0, 0, 0, 0]
  let [stopping, alone, looking] = [false, false, false]
  // The queue had no more until then; there is no token until then.
  let [dryUntil, tokensAt, suspectsAt] = [0, 0, Number.NEGATIVE_INFINITY]
  let roomMax = 0
  let beat: NodeJS.Timeout | undefined
  let deadline = { signal: worker.dying, madeAt: Number.NEGATIVE_INFINITY }

  const change = (): void => {
    changed.resolve()
    changed = Promise.withResolvers()
  }

  const settle: Settle = (done, fault) => {
    for (const job of done) inHand.delete(job)
    const handled = fault ? 0 : done.length
    settled += handled
    count(queue, -done.length, handled)
    if (fault) faults.push(fault.error)
    if (inHand.size === 0 || fault || settled >= roomMax) change()
  }

  /** One serves all that were claimed within half a second. */
  function deadlineFor(claimedAt: number): AbortSignal {
    if (claimedAt - deadline.madeAt > 500) {
      const leftMs = Math.max(0, Math.round(expireMs - (performance.now() - claimedAt)))
      const signal = AbortSignal.any([worker.dying, AbortSignal.timeout(leftMs)])
      const onAbort = () => {
        for (const held of running) held.passOn()
      }
      signal.addEventListener('abort', onAbort, { once: true })
      deadline = { signal, madeAt: claimedAt }
    }
    return deadline.signal
  }

  function accept(claimed: Job[], claimedAt: number): void {
    const deadline = deadlineFor(claimedAt)
    if (buffer.length === 0) filledAt = performance.now()
    for (const job of claimed) {
      inHand.add(job)
      buffer.push(new Held(job, deadline, claimedAt + expireMs * waitShare))
    }
    count(queue, claimed.length)
    beat ??= setInterval(showLife, (heartbeatSeconds * 1000) / 3).unref()
    startLanes()
  }

  function showLife(): void {
    if (inHand.size === 0) {
      clearInterval(beat)
      beat = undefined
      return
    }
    jobs.touch(queue, [...inHand]).then(dropLost, (error) => {
      worker.log.warn({ err: error, queue }, 'could not show a sign of life')
    })
  }

  /** What was not begun yet is not begun any more, and who works for nothing is told to stop. */
  function dropLost(lost: readonly Lost[]): void {
    if (lost.length === 0) return
    const fates = new Map(lost.map(({ job, cancelled }) => [job, cancelled]))
    for (const held of [...buffer, ...running]) {
      const { job } = held
      const cancelled = fates.get(job)
      if (cancelled === undefined || held.taken) continue
      held.take(cancelled ? 'cancelled' : 'lost')
      if (cancelled)
        worker.log.info({ job_id: job.id, queue }, 'a job was cancelled: it is dropped')
    }
    change()
  }

  function startLanes(): void {
    const free = Math.min((alone ? 1 : lanes) - busy, Math.ceil(buffer.length / takeMax))
    for (let i = 0; i < free; i++) void runLane()
  }

  async function runLane(): Promise<void> {
    busy++
    for (let held = take(); held.length > 0; held = take()) {
      for (const one of held) running.add(one)
      await options.run(held, settle).catch((error) => {
        settle(
          held.map(({ job }) => job),
          { error },
        )
      })
      for (const one of held) running.delete(one)
    }
    busy--
    if (busy === 0) change()
  }

  function take(): Held[] {
    if (stopping || buffer[0]?.mayBegin !== true) return []
    const held = buffer.splice(0, takeMax)
    begun += held.length
    if (buffer.length === 0) {
      busyMs += performance.now() - filledAt
      if (begun > 10 * batchMax) [begun, busyMs] = [begun / 2, busyMs / 2]
    }
    claimAhead()
    return held
  }

  /** Claims when what is left would be begun before the next claim is back. */
  function claimAhead(): void {
    const now = performance.now()
    const pace = begun / Math.max(1, busyMs + (buffer.length > 0 ? now - filledAt : 0))
    const ahead = Math.max(takeMax * lanes, 1.5 * pace * claimMs)
    if (buffer.length + asked >= Math.min(ahead, claimsAtOnce * batchMax)) return
    if (stopping || alone || claiming >= claimsAtOnce || now < dryUntil || now < tokensAt) return
    const taken = inHand.size + asked
    const want = Math.min(batchMax, roomMax - settled - taken, Math.floor(room()) - taken)
    if (want > 0) void claim(want)
  }

  async function claim(want: number): Promise<void> {
    claiming++
    asked += want
    const claimedAt = performance.now()
    try {
      const allowed = rate ? await permit(rate, want) : want
      const claimed = allowed > 0 ? await jobs.fetch(queue, allowed) : []
      claimMs = performance.now() - claimedAt
      if (claimed.length < allowed) dryUntil = performance.now() + lookAgainMs
      const paid = rate ? await pay(rate, claimed.length) : claimed.length
      accept(claimed.slice(0, paid), claimedAt)
      // Others were quicker: what there is no token for goes back, no attempt spent.
      const over = claimed.slice(paid)
      if (over.length > 0) await untilSaid(worker.dying, () => jobs.release(queue, over))
    } catch (error) {
      faults.push(error)
    } finally {
      claiming--
      asked -= want
      change()
    }
  }

  /** Asked before claiming: jobs that may not begin yet are not taken from the queue and put back. */
  async function permit(rate: Rate, want: number): Promise<number> {
    const { granted, waitMs } = await rates.count(rate)
    if (granted === 0) tokensAt = performance.now() + waitMs
    return Math.min(want, granted)
  }

  async function pay(rate: Rate, want: number): Promise<number> {
    if (want === 0) return 0
    const { granted, waitMs } = await rates.take(rate, want)
    if (granted < want) tokensAt = performance.now() + waitMs
    return granted
  }

  /** Gives back what was not begun: all of it, or what has waited too long here. */
  async function giveBack(which: (held: Held) => boolean): Promise<void> {
    const back = buffer.filter(which).map(({ job }) => job)
    if (back.length === 0) return
    buffer.splice(0, buffer.length, ...buffer.filter((held) => !which(held)))
    await untilSaid(worker.dying, () => jobs.release(queue, back)).finally(() => {
      for (const job of back) inHand.delete(job)
      count(queue, -back.length)
    })
  }

  async function finish(): Promise<number> {
    stopping = true
    while (claiming > 0) await changed.promise
    await giveBack(() => true)
    while (inHand.size > 0 || busy > 0) await changed.promise
    clearInterval(beat)
    beat = undefined
    if (faults.length > 0) throw faults.splice(0)[0]
    return told()
  }

  const told = (): number => {
    const handled = settled
    settled = 0
    return handled
  }

  /** Once a second: whether some must run alone. The others do not wait for the answer. */
  function lookForSuspects(): void {
    if (alone || looking || performance.now() - suspectsAt < suspectsEveryMs) return
    looking = true
    suspectsAt = performance.now()
    jobs
      .suspects(queue)
      .then(
        (found) => {
          alone ||= found
        },
        (error) => faults.push(error),
      )
      .finally(() => {
        looking = false
        change()
      })
  }

  /** Claims nothing until nothing is in hand, then one after the other, until there is none. */
  async function runSuspects(): Promise<void> {
    if (!alone || inHand.size > 0 || claiming > 0 || room() < 1) return
    const claimedAt = performance.now()
    if (rate && (await pay(rate, 1)) === 0) return
    const suspect = await jobs.fetchSuspect(queue)
    if (suspect) accept([suspect], claimedAt)
    else alone = false
  }

  /** What the pass comes back with, if it is over. */
  function outcome(until: number): Awaited<ReturnType<Pass>> | undefined {
    const now = performance.now()
    const idle = inHand.size === 0 && claiming === 0 && !looking
    if (!idle && now < until) return undefined
    if (settled > 0) return told()
    if (!idle) return { waitMs: 0 }
    if (room() < 1) return { waitMs: lookAgainMs }
    return now < tokensAt ? { waitMs: Math.ceil(tokensAt - now) } : 0
  }

  const pass: Pass = async (signal, handledMax) => {
    if (signal.aborted || worker.dying.aborted) return await finish()
    const until = performance.now() + passMs
    const onStop = () => {
      stopping = true
      change()
    }
    signal.addEventListener('abort', onStop, { once: true })
    ;[roomMax, stopping, dryUntil] = [handledMax, false, 0]
    try {
      for (;;) {
        if (faults.length > 0) throw faults.splice(0)[0]
        if (stopping || worker.dying.aborted) return await finish()
        lookForSuspects()
        if (settled < roomMax) await runSuspects()
        await giveBack((held) => !held.mayBegin)
        startLanes()
        const next = changed.promise
        claimAhead()
        const result = outcome(until)
        if (result !== undefined) return result
        const timer = setTimeout(change, lookAgainMs)
        await next
        clearTimeout(timer)
      }
    } finally {
      signal.removeEventListener('abort', onStop)
    }
  }
  const wake = () => {
    dryUntil = 0
    change()
  }
  return Object.assign(pass, { finish, wake, touch: showLife })
}

function rateOf(queue: QueueName): Rate | undefined {
  const perSecond = queueOf(queue)?.perSecond
  return perSecond === undefined ? undefined : { name: queue, perSecond, burst: perSecond }
}
