// What this process is doing, by queue: written by the passes over jobs, read by the registry's beat.

const queues = new Map<string, { active: number; handled: number }>()

/** Adds to what is in hand, and to what was settled since the start. */
export function count(queue: string, active: number, handled = 0): void {
  const doing = queues.get(queue)
  if (doing === undefined) queues.set(queue, { active, handled })
  else {
    doing.active += active
    doing.handled += handled
  }
}

export const readDoing = (): Record<string, { active: number; handled: number }> =>
  Object.fromEntries(queues)
