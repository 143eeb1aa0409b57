// Ends what a test run started, when the run is over or was killed: reads lines of {pid?, group?, dir?} from stdin, and at its
// end asks the processes to quit, waits for them, kills what stays, and removes the folders.

import { readFileSync, rmSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'

/** Tells a process from a later one of the same number; on Linux only. */
function startOf(pid) {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]
  } catch {
    return undefined
  }
}

const processes = []
const dirs = []
for await (const line of createInterface({ input: process.stdin })) {
  const { pid, signal, group, dir } = JSON.parse(line)
  // The whole group that it leads.
  if (pid) processes.push({ pid, to: group ? -pid : pid, signal, started: startOf(pid) })
  if (dir) dirs.push(dir)
}

const send = (pid, signal) => {
  try {
    process.kill(pid, signal)
    return true
  } catch {
    return false
  }
}

// A process that ended meanwhile is let alone: its number may be another's by now.
const left = () => processes.filter(({ pid, started }) => startOf(pid) === started && send(pid, 0))

for (const { to, signal } of left()) send(to, signal)
for (let waited = 0; left().length > 0 && waited < 10_000; waited += 20) await sleep(20)
for (const { to } of left()) send(to, 'SIGKILL')
for (const dir of dirs) rmSync(dir, { recursive: true, force: true, maxRetries: 5 })
