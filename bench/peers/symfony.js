// Symfony Messenger for bench/jobs.ts: starts symfony.php, to send and to work, and counts what it tells.

import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import pg from 'pg'
import { serve } from '../jobs/contender.ts'
import { cpuMsOf } from '../jobs/servers.ts'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 1 })

function startPhp(what, delayMs, onLine) {
  const file = join(import.meta.dirname, 'symfony.php')
  // As it is deployed: compiled once.
  const flags = ['-d', 'opcache.enable_cli=1', '-d', 'display_errors=stderr']
  const given = [file, what, process.env.SYMFONY_AUTOLOAD, String(delayMs)]
  const php = spawn('php', [...flags, ...given], { stdio: ['pipe', 'pipe', 'inherit'] })
  process.once('exit', () => php.kill('SIGKILL'))
  php.once('exit', (code) => code && process.exit(code))
  createInterface({ input: php.stdout }).on('line', onLine)
  return php
}

/** Of what was sent, and of its start, in their order. */
const waiting = []
const answered = () =>
  new Promise((resolve) => {
    waiting.push(resolve)
  })
let sender
let worker

serve({
  async install() {
    const ready = answered()
    sender = startPhp('send', 0, () => waiting.shift()?.())
    await ready
  },
  async clear() {
    await pool.query('truncate messenger_messages')
  },
  async insert(payloads) {
    const sent = answered()
    sender.stdin.write(`${JSON.stringify(payloads)}\n`)
    await sent
  },
  async remaining() {
    const { rows } = await pool.query('select count(*)::int as count from messenger_messages')
    return rows[0].count
  },
  waitsItself: true,
  cpuMs: () => (worker ? cpuMsOf(worker.pid) : 0),
  async work(handle, { delayMs }) {
    worker = startPhp('work', delayMs, (line) => {
      const [n, sentAt] = line.split(' ')
      void handle({ n: Number(n), ...(sentAt && { sentAt }) })
    })
    process.once('SIGTERM', () => process.exit())
  },
})
