// The torture, short: half a minute of faults from a fixed seed, as a test for every change. Long and with other seeds by
// hand, see torture.ts.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { torture } from './torture.ts'

test('a fleet that is killed, frozen and cut off under load', { timeout: 420_000 }, async (t) => {
  const { signal } = t
  const say = (line: string) => t.diagnostic(line)
  const { checks, faults } = await torture({ seed: 7, seconds: 35, buyers: 30, signal, say })
  await t.test('was hit', () => {
    const struck = [...faults.values()].reduce((sum, count) => sum + count, 0)
    assert.ok(struck >= 10, `${struck} faults`)
  })
  for (const { name, faults } of checks) {
    await t.test(name, () => assert.deepEqual(faults, []))
  }
})
