// Group commit: groups grow by themselves, order is kept, a bad command is found, the line is bounded.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createGroup, createLanes } from '../db/group.ts'
import { AppError } from '../domain/errors.ts'

/** A commit that waits to be let go, and tells what it was given. */
function gate() {
  const groups: number[][] = []
  const doors: (() => void)[] = []
  return {
    groups,
    open: () => doors.shift()?.(),
    async commit(commands: number[]) {
      groups.push(commands)
      await new Promise<void>((resolve) => doors.push(resolve))
      return commands.map((n) => n * 10)
    },
  }
}
const turn = () => new Promise((resolve) => setImmediate(resolve))
const always = () => true

test('the next group leaves when the last returned, with all who came meanwhile, in order', async () => {
  const { groups, open, commit } = gate()
  const group = createGroup({ commit, divides: always, groupMax: 3 })
  const first = group.run(1)
  await turn()
  const others = [2, 3, 4, 5].map((n) => group.run(n))
  assert.deepEqual(groups, [[1]])
  open()
  assert.equal(await first, 10)
  await turn()
  open()
  await turn()
  open()
  assert.deepEqual(await Promise.all(others), [20, 30, 40, 50])
  assert.deepEqual(groups, [[1], [2, 3, 4], [5]])
  assert.ok(group.idle)
})

test('a command that fails its group fails alone', async () => {
  const bad = new Error('bad')
  const group = createGroup<number, number>({
    divides: always,
    commit: async (commands) => {
      await turn()
      if (commands.includes(7)) throw bad
      return commands
    },
  })
  const results = await Promise.allSettled(Array.from({ length: 20 }, (_, n) => group.run(n)))
  results.forEach((result, n) => {
    assert.deepEqual(
      result,
      n === 7 ? { status: 'rejected', reason: bad } : { status: 'fulfilled', value: n },
    )
  })
})

test('an error that is nobody’s own fault is told to all at once', async () => {
  let commits = 0
  const group = createGroup<number, number>({
    divides: () => false,
    commit: async () => {
      commits++
      throw new Error('gone')
    },
  })
  const results = await Promise.allSettled([group.run(1), group.run(2), group.run(3)])
  assert.ok(results.every((result) => result.status === 'rejected'))
  assert.equal(commits, 1)
})

test('the line is bounded and says when to come back', async () => {
  const { open, commit } = gate()
  const group = createGroup({ commit, divides: always, groupMax: 1, waitingMax: 2 })
  const first = group.run(1)
  await turn()
  const waiting = [group.run(2), group.run(3)]
  await assert.rejects(
    group.run(4),
    (error) =>
      error instanceof AppError && error.code === 'OVERLOADED' && error.extra.retryAfterMs! > 0,
  )
  for (let i = 0; i < 3; i++) {
    open()
    await turn()
  }
  assert.deepEqual(await Promise.all([first, ...waiting]), [10, 20, 30])
})

test('whoever waited too long is refused before the command starts', async () => {
  const { groups, open, commit } = gate()
  const group = createGroup({ commit, divides: always, waitMaxMs: -1 })
  await assert.rejects(group.run(1), { code: 'OVERLOADED' })
  assert.deepEqual(groups, [])
  open()
})

test('a group that does not come back keeps nobody waiting longer than that', async () => {
  const { open, commit } = gate()
  const group = createGroup({ commit, divides: always, groupMax: 1, waitMaxMs: 20 })
  const stuck = group.run(1)
  await turn()
  await assert.rejects(group.run(2), { code: 'OVERLOADED' })
  open()
  assert.equal(await stuck, 10)
})

test('keys do not wait for each other', async () => {
  const { groups, open, commit } = gate()
  const lanes = createLanes({ commit, divides: always })
  const both = [lanes.run('a', 1), lanes.run('b', 2)]
  await turn()
  assert.deepEqual(groups, [[1], [2]])
  open()
  open()
  assert.deepEqual(await Promise.all(both), [10, 20])
})
