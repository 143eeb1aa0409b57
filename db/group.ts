// Group commit: callers hand in one command each and wait; one group at a time is carried out together, and the next
// leaves when the last has returned. No timer: under light load a group is one command, under heavy load it grows by
// itself. Arrival order is kept, the line is bounded, and a command that fails its group is found by bisection, so
// that its neighbours never notice.

import { AppError } from '../domain/errors.ts'

export type GroupOptions<C, R> = {
  /** Carries out the commands together and gives one result for each, in their order. */
  commit(commands: C[]): Promise<R[]>
  /** Whether an error may be the fault of one member, so that halves are worth trying. */
  divides(error: unknown): boolean
  groupMax?: number
  /** Callers in line at most; one more is refused with OVERLOADED. */
  waitingMax?: number
  /** A caller that waited longer is refused before its command starts, also while a group does not come back. */
  waitMaxMs?: number
}

export type Group<C, R> = {
  run(command: C): Promise<R>
  /** Nobody in line, nothing in flight. */
  readonly idle: boolean
}

const lateEveryMs = 500

type Member<C, R> = {
  command: C
  since: number
  resolve(result: R): void
  reject(error: unknown): void
}

export function createGroup<C, R>(options: GroupOptions<C, R>): Group<C, R> {
  const { groupMax = 256, waitingMax = 4096, waitMaxMs = 10_000 } = options
  let line: Member<C, R>[] = []
  let busy = false

  function run(command: C): Promise<R> {
    if (line.length >= waitingMax) return Promise.reject(overloaded('the line is full'))
    return new Promise<R>((resolve, reject) => {
      line.push({ command, since: performance.now(), resolve, reject })
      if (!busy) {
        busy = true
        queueMicrotask(drain)
      }
    })
  }

  async function drain() {
    const watch = setInterval(refuseLate, lateEveryMs)
    while (line.length > 0) {
      refuseLate()
      const group = line.slice(0, groupMax)
      line = line.slice(groupMax)
      await settle(group)
    }
    clearInterval(watch)
    busy = false
  }

  /** The line is in the order of arrival: the late stand in front. */
  function refuseLate() {
    const late = performance.now() - waitMaxMs
    const inTime = line.findIndex((member) => member.since >= late)
    const refused = line.splice(0, inTime < 0 ? line.length : inTime)
    for (const member of refused) member.reject(overloaded('waited too long'))
  }

  async function settle(members: Member<C, R>[]): Promise<void> {
    if (members.length === 0) return
    try {
      const results = await options.commit(members.map((member) => member.command))
      members.forEach((member, i) => {
        member.resolve(results[i] as R)
      })
    } catch (error) {
      if (members.length > 1 && options.divides(error)) {
        const half = members.length >> 1
        await settle(members.slice(0, half))
        await settle(members.slice(half))
      } else for (const member of members) member.reject(error)
    }
  }

  return {
    run,
    get idle() {
      return !busy
    },
  }
}

const overloaded = (why: string) =>
  new AppError('OVERLOADED', `too many requests at once: ${why}`, { retryAfterMs: 1000 })

/** One line a key (an event): keys do not wait for each other. An idle line is forgotten. */
export function createLanes<C, R>(
  options: GroupOptions<C, R>,
): { run(key: string, command: C): Promise<R> } {
  const lanes = new Map<string, Group<C, R>>()
  return {
    async run(key, command) {
      let lane = lanes.get(key)
      if (lane === undefined) {
        lane = createGroup(options)
        lanes.set(key, lane)
      }
      try {
        return await lane.run(command)
      } finally {
        // The lane turns idle a turn after its last caller is answered.
        setImmediate(() => {
          if (lane.idle && lanes.get(key) === lane) lanes.delete(key)
        })
      }
    },
  }
}
