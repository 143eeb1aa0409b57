// The data folder of the embedded Postgres and its password: made whole or not at all, by however many starters at once,
// and checked when it is there already. Foreign data, or data of another major version, are named and left alone.

import { execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import {
  chownSync,
  existsSync,
  linkSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { cleanEnv, codeOf, EmbeddedError, identity, type Place, wayOut } from './embeddedPlace.ts'
import { isAlive } from './embeddedProcess.ts'

export type DataOptions = {
  /** Off only where data may be lost: tests. */
  fsync?: boolean
  /** Told in one line what was mended, moved or waited for. */
  note?: (line: string) => void
}

/** Made aside and renamed, so that a folder named `data` is always a whole one. */
export function makeData(place: Place, { fsync = true, note = () => {} }: DataOptions): void {
  const { home, account } = place
  for (const name of readdirSync(home).filter((entry) => entry.startsWith('making-'))) {
    if (isBeingMade(join(home, name), Number(name.split('-')[1]))) continue
    rmSync(join(home, name), { recursive: true, force: true })
    note(`removed ${join(home, name)}, left half made by a start that was cut off`)
  }
  const data = join(home, 'data')
  if (existsSync(data)) {
    checkData(place)
    return
  }
  makePassword(place)
  const making = join(home, `making-${process.pid}-${randomBytes(4).toString('hex')}`)
  const args = ['-D', making, '-U', 'postgres', '-E', 'UTF8', '--locale=C', '--auth=scram-sha-256']
  args.push(`--pwfile=${join(home, 'password')}`)
  // From 17 on Postgres itself knows the case of letters beyond ASCII, the same on every system.
  if (place.major >= 17) args.push('--locale-provider=builtin', '--builtin-locale=C.UTF-8')
  if (!fsync) args.push('--no-sync')
  try {
    execFileSync(join(place.bin, 'initdb'), args, {
      ...identity(account),
      cwd: '/',
      env: cleanEnv,
      stdio: 'pipe',
      encoding: 'utf8',
    })
    renameSync(making, data)
  } catch (error) {
    // Another starter's folder was there first: just as good.
    if (existsSync(join(data, 'PG_VERSION'))) return
    const said = (error as { stderr?: string }).stderr?.trim() ?? (error as Error).message
    throw new EmbeddedError(`Postgres could not make its data folder in ${home}: ${said}`)
  } finally {
    rmSync(making, { recursive: true, force: true })
  }
}

/** In containers a new process soon has the number of a dead one, so age has its say too. */
function isBeingMade(path: string, pid: number): boolean {
  if (pid === process.pid || !existsSync(path)) return false
  return isAlive(pid) && Date.now() - statSync(path).mtimeMs < 600_000
}

function checkData({ home, major }: Place): void {
  const data = join(home, 'data')
  const file = join(data, 'PG_VERSION')
  if (!existsSync(file)) {
    throw new EmbeddedError(
      `${data} is no data folder of Postgres (it has no PG_VERSION): move it away, ${wayOut}`,
    )
  }
  const found = readFileSync(file, 'utf8').trim()
  if (found !== String(major)) {
    throw new EmbeddedError(
      `${data} was made by Postgres ${found}, and this is Postgres ${major}: dump it with the release that made it, ` +
        `or move it away to begin anew, ${wayOut}`,
    )
  }
  if (!existsSync(join(home, 'password'))) {
    throw new EmbeddedError(
      `${join(home, 'password')} is gone, and with it the way into ${data}: put it back, ` +
        `or move ${home} away to begin anew, ${wayOut}`,
    )
  }
}

/** linkSync gives the name to a whole file or fails: of two starters the first decides. */
function makePassword(place: Place): void {
  const path = join(place.home, 'password')
  if (existsSync(path)) return
  const draft = `password.${randomBytes(4).toString('hex')}`
  keep(place, draft, `${randomBytes(24).toString('hex')}\n`)
  try {
    linkSync(join(place.home, draft), path)
  } catch (error) {
    if (codeOf(error) !== 'EEXIST') throw error
  } finally {
    rmSync(join(place.home, draft))
  }
}

/** Writes a file that the account owns, whoever we are, and only it can read. */
export function keep({ home, account }: Place, name: string, text: string): void {
  const path = join(home, name)
  writeFileSync(path, text, { mode: 0o600 })
  if (account) chownSync(path, account.uid, account.gid)
}
