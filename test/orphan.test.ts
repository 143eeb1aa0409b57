// A worker whose supervisor was killed, and with it the reader of its log, ends by itself; a last line that nobody reads
// does not keep it.

import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { testDatabase } from './database.ts'

const { url } = await testDatabase()
const main = join(import.meta.dirname, '..', 'workers', 'expiry', 'main.ts')

/** A supervisor that starts one worker, says its pid, passes its log on, and can be killed. */
const supervisor = `
  const { spawn } = require('node:child_process')
  const child = spawn(process.execPath, [${JSON.stringify(main)}], {
    detached: true, stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  })
  console.log(child.pid)
  child.stdout.pipe(process.stdout)
  child.stderr.pipe(process.stderr)`

const isAlive = (pid: number) => {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

async function untilSaid(child: ChildProcess, pattern: RegExp): Promise<string> {
  let said = ''
  for await (const chunk of child.stdout!.setEncoding('utf8')) {
    said += chunk
    if (pattern.test(said)) return said
  }
  return assert.fail(`it ended without saying ${pattern}: ${said}`)
}

test('a worker outlives neither its supervisor nor the reader of its log', async () => {
  const parent = spawn(process.execPath, ['-e', supervisor], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, DATABASE_URL: url, METRICS_PORT: '0', LOG_LEVEL: 'debug' },
  })
  const said = await untilSaid(parent, /"worker":"expiry"/)
  const pid = Number(said.split('\n')[0])
  assert.ok(isAlive(pid))
  parent.kill('SIGKILL')
  await once(parent, 'exit')
  for (let i = 0; i < 1200 && isAlive(pid); i++) await sleep(50)
  const left = isAlive(pid)
  if (left) process.kill(pid, 'SIGKILL')
  assert.ok(!left, 'the worker was still there after 60 s')
})

test('lines that nobody reads any more do not keep a process from ending', async () => {
  const log = join(import.meta.dirname, '..', 'workers', 'log.ts')
  const program = `
    const { createLog } = await import(${JSON.stringify(log)})
    const log = createLog('last', 'info')
    process.send('ready')
    process.once('message', () => {
      // More than a pipe holds: the last of them is still on its way when the reader goes.
      for (let i = 0; i < 5000; i++) log.info({ i, text: 'x'.repeat(200) }, 'a line')
      log.info('the last line')
      process.exit(0)
    })`
  const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
    stdio: ['ignore', 'pipe', 'inherit', 'ipc'],
  })
  const ended = once(child, 'exit')
  await once(child, 'message')
  child.send('go')
  await sleep(500)
  child.stdout!.destroy()
  const outcome = await Promise.race([ended, sleep(60_000, 'still there', { ref: false })])
  child.kill('SIGKILL')
  assert.deepEqual(outcome, [0, null])
})
