// Ends what a test run started, when the run is over or was killed: reads lines of {pid?, dir?} from stdin, and at its
// end asks the processes to quit, waits for them, kills what stays, and removes the folders.

import { rmSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'

const pids = []
const dirs = []
for await (const line of createInterface({ input: process.stdin })) {
  const { pid, dir } = JSON.parse(line)
  if (pid) pids.push(pid)
  if (dir) dirs.push(dir)
}

const signal = (pid, name) => {
  try {
    process.kill(pid, name)
    return true
  } catch {
    return false
  }
}

// SIGQUIT is Postgres's immediate shutdown: nothing here is worth a checkpoint. Redis has no use for it.
for (const pid of pids) {
  signal(pid, 'SIGQUIT')
  signal(pid, 'SIGTERM')
}
for (let waited = 0; pids.some((pid) => signal(pid, 0)) && waited < 5000; waited += 20)
  await sleep(20)
for (const pid of pids) signal(pid, 'SIGKILL')
for (const dir of dirs) rmSync(dir, { recursive: true, force: true, maxRetries: 5 })
