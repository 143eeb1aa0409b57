// Which ports the fleet listens on, and whether they are free: asked before anything is started.

import { once } from 'node:events'
import { createServer } from 'node:net'
import type { Environment } from '../workers/config.ts'
import { Exit } from './program.ts'
import type { Worker } from './workers.ts'

const metricsBase = 9400

export async function isFree(port: number, host: string): Promise<boolean> {
  const server = createServer()
  try {
    server.listen(port, host)
    await once(server, 'listening')
    return true
  } catch {
    return false
  } finally {
    if (server.listening) {
      server.close()
      await once(server, 'close')
    }
  }
}

/** Of the workers that people call: the setting of the port, the one of the address, and the port when it is unset. */
const served: Readonly<Record<string, readonly [string, string, number]>> = {
  http: ['HTTP_PORT', 'HTTP_HOST', 8080],
  waitingroom: ['WAITINGROOM_PORT', 'WAITINGROOM_HOST', 8090],
}

/** @throws Exit when a port that people are to call is taken */
export async function checkServedPorts(chosen: readonly Worker[], env: Environment): Promise<void> {
  for (const { name } of chosen) {
    const [portName, hostName, usual] = served[name] ?? []
    if (portName === undefined || hostName === undefined) continue
    const [port, host] = [Number(env[portName] || usual), env[hostName] || '127.0.0.1']
    if (port === 0 || (await isFree(port, host))) continue
    throw new Exit(
      'failed',
      `port ${port} on ${host} is in use: stop what listens there, or set ${portName}`,
    )
  }
}

/** A port of /metrics for each worker: METRICS_PORT and up; when that is unset, the first from 9400 that are free. */
export async function metricsPorts(
  chosen: readonly Worker[],
  env: Environment,
): Promise<Map<string, number>> {
  const host = env.METRICS_HOST || '127.0.0.1'
  const fixed = env.METRICS_PORT ? Number(env.METRICS_PORT) : undefined
  const ports = new Map<string, number>()
  let next = fixed ?? metricsBase
  for (const { name } of chosen) {
    if (fixed !== 0) while (!(await isFree(next, host))) next = nextPort(next, fixed)
    ports.set(name, next)
    if (fixed !== 0) next++
  }
  return ports
}

function nextPort(taken: number, fixed: number | undefined): number {
  if (fixed === undefined && taken < metricsBase + 500) return taken + 1
  throw new Exit('failed', `port ${taken}, which METRICS_PORT asks for, is in use`)
}
