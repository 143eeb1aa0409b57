// The torture, short: half a minute of faults from a fixed seed, as a test for every change. Long and with other seeds by
// hand, see torture.ts.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { essentials } from './faults.ts'
import { torture } from './torture.ts'

const seed = 7

test('a fleet that is killed, frozen and cut off under load', { timeout: 420_000 }, async (t) => {
  const { signal } = t
  const said: string[] = []
  const say = (line: string) => said.push(line)
  let proven = false
  t.after(() => {
    if (!proven) for (const line of said) t.diagnostic(line)
  })
  const { checks, faults } = await torture({ seed, seconds: 35, buyers: 30, signal, say })
  const missing = essentials.filter((name) => !faults.has(name))
  proven = missing.length === 0 && checks.every(({ faults }) => faults.length === 0)
  await t.test('was hit by each kind of fault', () => assert.deepEqual(missing, []))
  for (const { name, faults } of checks) {
    await t.test(name, () => assert.deepEqual(faults, []))
  }
})
