// Programs that tests start beside ours: whether they are there, and how to get them.

import { existsSync } from 'node:fs'
import { delimiter, join } from 'node:path'

/** Debian's own place for daemons, which a user's PATH may lack. */
const folders = [...(process.env.PATH ?? '').split(delimiter), '/usr/sbin']

/** Its path. @throws Error when it is nowhere */
export function pathOf(program: string): string {
  const found = folders.map((folder) => join(folder, program)).find((path) => existsSync(path))
  if (found === undefined) throw new Error(`${program} is not there`)
  return found
}

/**
 * For `{ skip: missing('pgbouncer', 'pgbouncer') }`: false when the program is there, else the reason and the Debian
 * package that has it. With FLOTILLA_REFUSE_SKIPS=1 what is missing is an error.
 */
export function missing(program: string, debian: string): string | false {
  if (folders.some((folder) => existsSync(join(folder, program)))) return false
  const reason = `needs ${program} on the PATH: apt-get install ${debian}`
  if (process.env.FLOTILLA_REFUSE_SKIPS === '1') throw new Error(reason)
  return reason
}
