// What the benches of the loader run on: a Postgres of their own (or a database of their own on DATABASE_URL), sources as
// processes, loaders as the processes they are. All of it ends with the bench.

import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { chmodSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import pg from 'pg'
import { known } from '../../cli/program.ts'
import { startOf, workers } from '../../cli/workers.ts'
import { startEmbedded } from '../../db/embedded.ts'
import { migrate } from '../../db/migrate.ts'
import { type Database, openDatabase } from '../../db/open.ts'
import { closeSources, type Sources } from '../../test/servers/eventSource.ts'

export type Place = {
  url: string
  dataDir: string
  database: Database
  ends: (() => unknown)[]
  end(): Promise<void>
}

export async function openPlace(): Promise<Place> {
  const ends: (() => unknown)[] = [closeSources]
  let ending: Promise<void> | undefined
  const end = () => {
    ending ??= (async () => {
      for (const one of ends.toReversed()) await one()
    })()
    return ending
  }
  const dataDir = mkdtempSync(join(tmpdir(), 'flotilla-bench-'))
  chmodSync(dataDir, 0o755)
  ends.push(() => rmSync(dataDir, { recursive: true, force: true }))
  try {
    let server = process.env.DATABASE_URL
    if (!server) {
      const embedded = await startEmbedded({ dataDir, settings: { shared_buffers: '512MB' } })
      ends.push(embedded.stop)
      server = embedded.url
    }
    const maker = new pg.Client({ connectionString: server })
    await maker.connect()
    ends.push(() => maker.end())
    const name = `flotilla_bench_${randomBytes(4).toString('hex')}`
    await maker.query(`create database ${name}`)
    ends.push(() => maker.query(`drop database ${name} with (force)`))
    const url = new URL(server)
    url.pathname = `/${name}`
    await migrate({ url: url.href })
    const database = openDatabase({ url: url.href, name: 'bench', poolMax: 4, statementMaxMs: 0 })
    ends.push(database.close)
    return { url: url.href, dataDir, database, ends, end }
  } catch (error) {
    await end()
    throw error
  }
}

export type Instance = { process: ChildProcess; output(): string }

/** A loader of these sources, as its own process. `preload`: a module that is loaded before it. */
export function startLoader(
  place: Place,
  sources: readonly object[],
  env: Record<string, string> = {},
  preload?: string,
): Instance {
  const file = join(place.dataDir, 'sources.json')
  const text = JSON.stringify({ sources })
  // Once: others may be reading it.
  if (!existsSync(file) || readFileSync(file, 'utf8') !== text) writeFileSync(file, text)
  const given = {
    ...process.env,
    DATABASE_URL: place.url,
    LOADER_SOURCES: file,
    METRICS_PORT: '0',
    LOG_LEVEL: 'warn',
    ...env,
  }
  // As the fleet starts it.
  const start = startOf(known('worker', 'loader', workers), given, place.dataDir)
  const args = [...(preload ? ['--import', preload] : []), ...start.args]
  const child = spawn(process.execPath, args, {
    env: start.env,
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (chunk: string) => {
      output = (output + chunk).slice(-20_000)
    })
  }
  place.ends.push(() => child.kill('SIGKILL'))
  return { process: child, output: () => output }
}

/** @returns its exit code; one that was still starting is ended by the signal itself, and that is well, too */
export async function stopLoader({ process: child }: Instance): Promise<number | string | null> {
  if (child.exitCode !== null || child.signalCode !== null) {
    return child.exitCode ?? child.signalCode
  }
  const gone = once(child, 'exit')
  child.kill('SIGTERM')
  await gone
  return child.signalCode === 'SIGTERM' ? 0 : (child.exitCode ?? child.signalCode)
}

export const sourcesOf = (remote: Sources, prefix: string, more: object = {}): object[] =>
  remote.ports.map((port, i) => ({
    name: `${prefix}-${i}`,
    url: `http://127.0.0.1:${port}/events`,
    ...more,
  }))

/** Resident, MB. */
export function residentOf(pid: number | undefined): number {
  const found = /VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))
  return Number(found?.[1] ?? 0) / 1024
}

export async function totalLoaded({ database }: Place): Promise<number> {
  const { rows } = await sql<{ n: string }>`
    select coalesce(sum(loaded), 0)::text as n from loader_sources`.execute(database.db)
  return Number(rows[0]?.n)
}

export async function empty({ database }: Place): Promise<void> {
  await sql`truncate loader_sources, loader_turns, loader_seen, loaded_events`.execute(database.db)
}

export async function untilLoaded(place: Place, count: number, maxMs = 120_000): Promise<void> {
  const endsAt = performance.now() + maxMs
  for (;;) {
    const n = await totalLoaded(place)
    if (n >= count) return
    if (performance.now() > endsAt) throw new Error(`${n} of ${count} events after ${maxMs} ms`)
    await sleep(10)
  }
}
