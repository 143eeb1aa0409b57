// The code of an earlier commit, for tests that let it run beside today's: the newest one that has some of today's
// migrations, word for word, and not all. Taken from git's history, where there is one.

import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after } from 'node:test'

const root = join(import.meta.dirname, '..')
const git = (...args: string[]) =>
  execFileSync('git', ['-C', root, ...args], {
    encoding: 'utf8',
    maxBuffer: 2 ** 28,
    stdio: ['ignore', 'pipe', 'ignore'],
  })

/** `<hash> <name>` of each. */
const migrationsAt = (commit: string): string[] =>
  git('ls-tree', '--format=%(objectname) %(path)', commit, 'db/migrations/').trim().split('\n')

export type Release = { commit: string; migrations: number; folder: string }

/** Undefined: no git here, or no history that goes back so far (a shallow clone, an archive). */
export function releaseBefore(): Release | undefined {
  try {
    const found = newestBefore()
    return found && { ...found, folder: unpack(found.commit) }
  } catch {
    return undefined
  }
}

function newestBefore(): Omit<Release, 'folder'> | undefined {
  const today = new Set(migrationsAt('HEAD'))
  let best: Omit<Release, 'folder'> | undefined
  for (const commit of git('rev-list', 'HEAD', '--', 'db/migrations').trim().split('\n')) {
    // The commit that touched the folder, and what stood right before it.
    for (const at of [commit, ...git('rev-list', '--parents', '-1', commit).trim().split(' ')]) {
      const migrations = migrationsAt(at)
      const fits = migrations.length < today.size && migrations.every((one) => today.has(one))
      if (fits && migrations.length > (best?.migrations ?? 0)) {
        best = { commit: at, migrations: migrations.length }
      }
    }
  }
  return best
}

function unpack(commit: string): string {
  const folder = mkdtempSync(join(tmpdir(), 'flotilla-before-'))
  after(() => rmSync(folder, { recursive: true }))
  const tar = join(folder, 'tree.tar')
  git('archive', '--output', tar, commit)
  const tree = join(folder, 'tree')
  mkdirSync(tree)
  execFileSync('tar', ['-xf', tar, '-C', tree])
  symlinkSync(realpathSync(join(root, 'node_modules')), join(tree, 'node_modules'))
  return tree
}
