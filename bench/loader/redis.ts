// A redis-server of a bench's own.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:net'
import type { Place } from './place.ts'

/** @returns its URL */
export async function launchRedis({ dataDir, ends }: Place): Promise<string> {
  const probe = createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const { port } = probe.address() as { port: number }
  probe.close()
  await once(probe, 'close')
  const args = ['--port', String(port), '--bind', '127.0.0.1', '--save', '', '--dir', dataDir]
  const server = spawn('redis-server', args, { stdio: ['ignore', 'pipe', 'inherit'] })
  process.once('exit', () => server.kill('SIGKILL'))
  ends.push(() => server.kill('SIGKILL'))
  let said = ''
  for await (const chunk of server.stdout) {
    said += chunk
    if (said.includes('Ready to accept connections')) break
  }
  return `redis://127.0.0.1:${port}`
}
