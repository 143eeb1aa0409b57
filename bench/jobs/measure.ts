// One measurement: how fast the jobs of a table are done, or how late one begins when there is nothing else to do. Every
// job is counted: what was lost or ran twice is told.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Child } from './child.ts'
import type { Progress, Report } from './contender.ts'
import type { Contender } from './entries.ts'
import { cpuMsOf } from './servers.ts'

export type Drain = {
  processes: number
  delayMs: number
  jobs: number
  /** Jobs in the table that are there to stay. */
  deep: number
}

export type Sample = {
  perSecond: number
  /** Processor time a job, µs: what a busy machine does not change much. */
  workerCpu: number
  serverCpu: number
  peakBytes: number
  /** Jobs that were lost or ran twice, or did not end. */
  faults: string[]
}

const drainMaxMs = 300_000
/** Done before the clock starts: code that is not compiled yet takes several times as long. */
const warmUp = 4000

/** From the end of the warm-up until the database holds none that is not finished. */
export async function drain(
  { driver, startWorker, serverPid, share }: Contender,
  { processes, delayMs, jobs, deep }: Drain,
  prepared: () => Promise<unknown>,
): Promise<Sample> {
  const toDo = (warmUp + jobs) * share
  const total = toDo + deep
  await driver.call('insert', total, 0)
  await prepared()
  const workers = await Promise.all(Array.from({ length: processes }, startWorker))
  await Promise.all(workers.map((worker) => worker.call('work', { total, delayMs })))
  const from = await untilHandled(workers, warmUp * share)
  const serverBefore = cpuMsOf(serverPid)
  let to = await untilHandled(workers, toDo)
  const isDone = to.handled >= toDo
  while (isDone && deep === 0 && (await driver.call<number>('remaining')) > 0) await sleep(2)
  const serverCpuMs = cpuMsOf(serverPid) - serverBefore
  to = await progressOf(workers)
  const reports = await Promise.all(workers.map((worker) => worker.call<Report>('report')))
  await Promise.all(workers.map((worker) => worker.stop()))
  const faults = countRuns(reports, total, deep === 0)
  if (!isDone) faults.push(`${toDo} jobs were not done within ${drainMaxMs / 1000} s`)
  const handled = to.handled - from.handled
  return {
    perSecond: handled / (Number(to.at - from.at) / 1e9),
    workerCpu: ((to.cpuMs - from.cpuMs) * 1000) / handled,
    serverCpu: (serverCpuMs * 1000) / handled,
    peakBytes: Math.max(...reports.map(({ peakBytes }) => peakBytes)),
    faults,
  }
}

/** Where the workers are when they have handled so many, or it took too long. */
async function untilHandled(workers: Child[], jobs: number) {
  const giveUpAt = performance.now() + drainMaxMs
  for (;;) {
    const now = await progressOf(workers)
    if (now.handled >= jobs || performance.now() > giveUpAt) return now
    await sleep(5)
  }
}

async function progressOf(workers: Child[]) {
  const told = await Promise.all(workers.map((worker) => worker.call<Progress>('progress')))
  return {
    handled: sum(told.map(({ handled }) => handled)),
    at: told
      .map(({ at }) => BigInt(at))
      .sort(byTime)
      .at(-1)!,
    cpuMs: sum(told.map(({ cpuMs }) => cpuMs)),
  }
}

const byTime = (a: bigint, b: bigint): number => Number(a - b)

const sum = (numbers: number[]): number => numbers.reduce((a, b) => a + b, 0)

/** @returns what is wrong */
function countRuns(reports: Report[], total: number, isWhole: boolean): string[] {
  const runs = new Uint32Array(total)
  for (const report of reports) {
    Buffer.from(report.runs, 'base64').forEach((count, n) => {
      runs[n] = (runs[n] ?? 0) + count
    })
  }
  const lost = isWhole ? runs.filter((count) => count === 0).length : 0
  const twice = runs.filter((count) => count > 1).length
  return lost + twice > 0 ? [`${lost} jobs lost, ${twice} run twice`] : []
}

export type Lateness = { latencies: number[]; faults: string[] }

/** One job at a time into an empty table. @returns from before it was sent until it began, ms, ascending */
export async function trickle(
  { driver, startWorker }: Contender,
  { jobs, gapMs }: { jobs: number; gapMs: number },
): Promise<Lateness> {
  const worker = await startWorker()
  await worker.call('work', { total: jobs, delayMs: 0 })
  // Till it listens and has found nothing to do.
  await sleep(1500)
  await driver.call('trickle', jobs, gapMs)
  await untilHandled([worker], jobs)
  const report = await worker.call<Report>('report')
  await worker.stop()
  const latencies = report.latencies.sort((a, b) => a - b)
  return { latencies, faults: countRuns([report], jobs, true) }
}
