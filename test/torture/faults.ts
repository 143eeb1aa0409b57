// The faults, dealt from a shuffled deck, so that every kind comes in each lap, a kill -9 of each worker and a crash of
// Postgres before the others. What they break is for the fleet to mend: a frozen process is thawed, a stopped Postgres
// started again, and that is all the help there is.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Buyers } from './buyers.ts'
import type { Dice } from './dice.ts'
import type { Machine, Running } from './machines.ts'
import type { Outage, Postgres } from './postgres.ts'
import type { Rabbit } from './rabbit.ts'

export type Victims = {
  machines: readonly Machine[]
  postgres: Postgres
  buyers: Buyers
  rabbit?: Rabbit | undefined
}

export type Faults = {
  /** Strikes every 0.5 to 2 s until the signal aborts; resolves when nothing is frozen any more. */
  run(signal: AbortSignal): Promise<void>
  /** How often each struck. */
  counts: ReadonlyMap<string, number>
  /** What every torture does and this one has not yet. */
  missing(): string[]
}

/** What every torture does, however short. */
const essentialsOf = ({ machines, rabbit }: Victims): string[] => [
  ...workersOf(machines).map((name) => `kill -9 ${name}`),
  'Postgres crashed',
  ...(rabbit ? [rabbitCrashed] : []),
]

const workersOf = (machines: readonly Machine[]): string[] => [
  ...new Set(machines.flatMap((machine) => machine.workers)),
]

const rabbitCrashed = 'RabbitMQ crashed'

/** Says in a few words what it did; undefined: there was nobody to hit just now. */
type Fault = { name: string; strike(): Promise<string | undefined> }

/** Faults between two tries of one that found nobody. */
const againAfter = 3
const pauseMs = { least: 500, most: 2000 }
const freezeMs = { least: 1000, most: 6000 }

export function createFaults(victims: Victims, dice: Dice, told: (line: string) => void): Faults {
  const counts = new Map<string, number>()
  const frozen = new Map<number, Promise<void>>()
  const deck = createDeck(victims, dice, frozen)
  const essential = essentialsOf(victims)

  async function run(signal: AbortSignal): Promise<void> {
    let hand: Fault[] = []
    while (!signal.aborted) {
      await sleep(dice.between(pauseMs.least, pauseMs.most), undefined, { signal }).catch(() => {})
      if (signal.aborted) break
      if (hand.length === 0) hand = deal(deck, essential, dice)
      const fault = hand.shift()!
      const { name } = fault
      const what = await fault.strike()
      if (what === undefined) {
        // Soon again: it may be just starting.
        hand.splice(againAfter, 0, fault)
        continue
      }
      counts.set(name, (counts.get(name) ?? 0) + 1)
      told(`${name}: ${what}`)
    }
    await Promise.all(frozen.values())
  }

  return { run, counts, missing: () => essential.filter((name) => !counts.has(name)) }
}

function deal(deck: readonly Fault[], essential: readonly string[], dice: Dice): Fault[] {
  const first = essential.flatMap((name) => deck.find((fault) => fault.name === name) ?? [])
  return [...dice.shuffle(first), ...dice.shuffle(deck.filter((fault) => !first.includes(fault)))]
}

function createDeck(
  { machines, postgres, buyers, rabbit }: Victims,
  dice: Dice,
  frozen: Map<number, Promise<void>>,
): Fault[] {
  const find = (name: string): (Running & { at: string }) | undefined => {
    const found = machines.flatMap((machine) => {
      const one = machine.running().find((running) => running.name === name)
      return one ? [{ ...one, at: machine.name }] : []
    })
    return found.length > 0 ? dice.pick(found) : undefined
  }

  const hit = (name: string, signal: NodeJS.Signals): Fault => ({
    name: `${signal === 'SIGKILL' ? 'kill -9' : 'kill'} ${name}`,
    strike: async () => {
      const victim = find(name)
      if (victim === undefined || !send(victim.pid, signal)) return undefined
      return `${victim.pid} on ${victim.at}`
    },
  })

  const freeze = (name: string): Fault => ({
    name: `freeze ${name}`,
    strike: async () => {
      const victim = find(name)
      const ms = Math.round(dice.between(freezeMs.least, freezeMs.most))
      if (victim === undefined || frozen.has(victim.pid)) return undefined
      const { pid, at } = victim
      if (!send(pid, 'SIGSTOP')) return undefined
      const thawed = sleep(ms).then(() => {
        send(pid, 'SIGCONT')
        frozen.delete(pid)
      })
      frozen.set(pid, thawed)
      return `${pid} on ${at} for ${(ms / 1000).toFixed(1)} s`
    },
  })

  const outage = (how: Outage): Fault => ({
    name: `Postgres ${how}`,
    strike: async () => `away for ${((await postgres.restart(how)) / 1000).toFixed(1)} s`,
  })

  const backends: Fault = {
    name: 'backends terminated',
    strike: async () => {
      const rows = await postgres.ask<{ name: string }>(
        `select application_name as name from (
           select pid, application_name from pg_stat_activity
           where application_name like 'flotilla:%' order by random() limit $1
         ) b where pg_terminate_backend(pid)`,
        [Math.round(dice.between(1, 6))],
      )
      return rows.map(({ name }) => name.replace('flotilla:', '')).join(', ') || undefined
    },
  }

  /** The postmaster then ends all the others, and recovers by itself. */
  const backendKilled: Fault = {
    name: 'kill -9 of a backend',
    strike: async () => {
      const [row] = await postgres.ask<{ pid: number; name: string }>(
        `select pid, application_name as name from pg_stat_activity
         where application_name like 'flotilla:%' order by random() limit 1`,
      )
      return row && send(row.pid, 'SIGKILL') ? `of ${row.name}` : undefined
    },
  }

  const cut: Fault = {
    name: 'clients cut off',
    strike: async () => {
      const count = buyers.cut(Math.round(dice.between(3, 20)))
      return count > 0 ? `${count} requests under way` : undefined
    },
  }

  const supervisor: Fault = {
    name: 'kill -9 of fleet up',
    strike: async () => {
      const machine = dice.pick(machines)
      machine.killSupervisor()
      return machine.name
    },
  }

  const broker: Fault[] = rabbit
    ? [
        {
          name: rabbitCrashed,
          strike: async () => `away for ${((await rabbit.restart()) / 1000).toFixed(1)} s`,
        },
      ]
    : []

  const names = workersOf(machines)
  return [
    ...broker,
    ...names.flatMap((name) => [hit(name, 'SIGKILL'), hit(name, 'SIGKILL')]),
    ...names.map(freeze),
    hit('http', 'SIGTERM'),
    hit(dice.pick(names), 'SIGTERM'),
    backends,
    backends,
    backends,
    cut,
    cut,
    cut,
    backendKilled,
    outage('stopped'),
    outage('crashed'),
    outage('killed'),
    supervisor,
  ]
}

/** @returns false when it is gone already */
function send(pid: number, signal: NodeJS.Signals): boolean {
  try {
    process.kill(pid, signal)
    return true
  } catch {
    return false
  }
}
