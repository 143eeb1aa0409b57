// A stand-in as a process of its own: started on a free port, stopped as a crash would, started again on the same port;
// and the other side of that, the file that is the process. What it answers is its own.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import type { Server } from 'node:http'
import type { AddressInfo } from 'node:net'

export type StandIn = {
  url: string
  post(path: string, body: object): Promise<void>
  /** At once. */
  stop(): Promise<void>
  /** Again on its port, having forgotten all. */
  start(): Promise<void>
}

/** `file`: what listens where it is run. Who starts it stops it. */
export async function startStandIn(file: string): Promise<StandIn> {
  let child: ChildProcess | undefined
  let port = 0

  async function start(): Promise<void> {
    child = spawn(process.execPath, [file, '--port', String(port)], {
      stdio: ['pipe', 'pipe', 'inherit'],
    })
    const [line] = (await once(child.stdout as NodeJS.ReadableStream, 'data')) as [Buffer]
    port = JSON.parse(line.toString()).port
  }
  async function stop(): Promise<void> {
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return
    const gone = once(child, 'exit')
    child.kill('SIGKILL')
    await gone
  }

  await start()
  const url = `http://127.0.0.1:${port}`
  return {
    url,
    async post(path, body) {
      await (await fetch(`${url}${path}`, { method: 'POST', body: JSON.stringify(body) })).text()
    },
    stop,
    start,
  }
}

/** In the process: says its port on stdout, and ends with whoever started it. */
export async function listenAsStandIn(server: Server, port: string | undefined): Promise<void> {
  server.listen(Number(port ?? 0), '127.0.0.1')
  await once(server, 'listening')
  process.stdout.write(`${JSON.stringify({ port: (server.address() as AddressInfo).port })}\n`)
  if (!process.stdin.isTTY) process.stdin.resume().once('end', () => process.exit(0))
}
