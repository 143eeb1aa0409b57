// What every job queue of bench/jobs.ts is asked to do, and the process that does it: its parent calls by IPC. Each
// handled job is counted by its number, so that one lost or run twice shows. Times are of the machine's monotonic
// clock, which all processes share.

export type Payload = { n: number; pad: string; sentAt?: string }

export type Handle = (payload: Payload) => void | Promise<void>

export type Contender = {
  /** Makes its tables; what is there already stays. */
  install?(): Promise<void>
  /** Everything away: the table is as new. */
  clear?(): Promise<void>
  /** One statement or call for all of them. */
  insert?(payloads: Payload[]): Promise<void>
  /** Finished jobs into the table, where it keeps them. */
  insertFinished?(payloads: Payload[]): Promise<void>
  /** Jobs that are not finished. */
  remaining?(): Promise<number>
  /** Begins to work, until the process ends. */
  work?(handle: Handle, work: Work): Promise<void>
  /** It lets a job take as long as it is to, before it calls `handle`. */
  waitsItself?: true
  /** Processor time of another process that works for it. */
  cpuMs?(): number
}

export type Work = {
  /** Jobs are numbered below this. */
  total: number
  /** How long a job takes; 0 is none at all. */
  delayMs: number
}

export type Progress = {
  /** Jobs handled so far. */
  handled: number
  /** When that was so, ns. */
  at: string
  /** Processor time of the process. */
  cpuMs: number
}

export type Report = {
  /** How often each job ran, a byte a job, base64. */
  runs: string
  /** From before it was sent until it began, ms. */
  latencies: number[]
  peakBytes: number
}

export const insertMax = 1000

const pad = 'x'.repeat(64)
const payload = (n: number): Payload => ({ n, pad })

/** Does what the parent asks for, and ends when the parent is gone. */
export function serve(contender: Contender): void {
  const tally = createTally()

  const calls = {
    ready: async () => {},
    install: () => contender.install!(),
    clear: () => contender.clear!(),
    remaining: () => contender.remaining!(),
    insert: (count: number, first: number) => insertAll(contender.insert!, count, first),
    insertFinished: async (count: number) => {
      if (!contender.insertFinished) return false
      await insertAll(contender.insertFinished, count, 0)
      return true
    },
    /** One by one, so far apart. */
    async trickle(count: number, gapMs: number) {
      for (let n = 0; n < count; n++) {
        const sentAt = String(process.hrtime.bigint())
        await contender.insert!([{ ...payload(n), sentAt }])
        await new Promise((resolve) => setTimeout(resolve, gapMs))
      }
    },
    work(work: Work) {
      const delayMs = contender.waitsItself ? 0 : work.delayMs
      return contender.work!(tally.begin({ ...work, delayMs }), work)
    },
    progress: async () => tally.progress(contender.cpuMs?.() ?? 0),
    report: async () => tally.report(),
  }

  process.on('message', async ({ id, call, args }: Call) => {
    try {
      const method = calls[call] as (...args: unknown[]) => Promise<unknown>
      process.send?.({ id, result: await method(...args) })
    } catch (error) {
      process.send?.({ id, error: (error as Error).stack })
    }
  })
  process.on('disconnect', () => process.exit())
}

export type Call = {
  id: number
  call:
    | 'ready'
    | 'install'
    | 'clear'
    | 'remaining'
    | 'insert'
    | 'insertFinished'
    | 'trickle'
    | 'work'
    | 'progress'
    | 'report'
  args: unknown[]
}

/** @returns seconds */
async function insertAll(
  insert: (payloads: Payload[]) => Promise<void>,
  count: number,
  first: number,
): Promise<number> {
  const begun = performance.now()
  for (let done = 0; done < count; done += insertMax) {
    const length = Math.min(insertMax, count - done)
    await insert(Array.from({ length }, (_, i) => payload(first + done + i)))
  }
  return (performance.now() - begun) / 1000
}

function createTally() {
  let runs = new Uint8Array(0)
  let handled = 0
  let peakBytes = 0
  const latencies: number[] = []
  const count = ({ n, sentAt }: Payload) => {
    handled++
    runs[n] = (runs[n] ?? 0) + 1
    if (sentAt) latencies.push(Number(process.hrtime.bigint() - BigInt(sentAt)) / 1e6)
  }
  return {
    begin({ total, delayMs }: Work): Handle {
      runs = new Uint8Array(total)
      setInterval(() => {
        peakBytes = Math.max(peakBytes, process.memoryUsage.rss())
      }, 50).unref()
      if (delayMs === 0) return count
      return async (job) => {
        await new Promise((resolve) => setTimeout(resolve, delayMs))
        count(job)
      }
    },
    progress(otherMs: number): Progress {
      const { user, system } = process.cpuUsage()
      const cpuMs = (user + system) / 1000 + otherMs
      return { handled, at: String(process.hrtime.bigint()), cpuMs }
    },
    report: (): Report => ({
      runs: Buffer.from(runs.buffer).toString('base64'),
      latencies,
      peakBytes,
    }),
  }
}
