// The torture, short: half a minute of faults from a fixed seed, for every change (`make torture`). Long and with other seeds by
// hand, see torture.ts.

import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { withoutRabbit } from '../servers/rabbitmq.ts'
import { type TortureOptions, torture } from './torture.ts'

const seed = 7

/** Those that a sale goes through. The others are on one machine, once: two of everything by hand. */
const sale = ['http', 'outbox', 'inbox', 'email', 'expiry']

async function tortured(t: TestContext, given: Pick<TortureOptions, 'only' | 'rabbit'>) {
  const { signal } = t
  const said: string[] = []
  const say = (line: string) => said.push(line)
  let proven = false
  t.after(() => {
    if (!proven) for (const line of said) t.diagnostic(line)
  })
  const { checks, missing } = await torture({
    seed,
    seconds: 35,
    buyers: 30,
    signal,
    say,
    ...given,
  })
  proven = missing.length === 0 && checks.every(({ faults }) => faults.length === 0)
  await t.test('was hit by each kind of fault', () => assert.deepEqual(missing, []))
  for (const { name, faults } of checks) {
    await t.test(name, () => assert.deepEqual(faults, []))
  }
}

test('a fleet that is killed, frozen and cut off under load', { timeout: 420_000 }, (t) =>
  tortured(t, { only: [undefined, sale] }),
)

test(
  'the same over a RabbitMQ that crashes too',
  {
    timeout: 420_000,
    skip: withoutRabbit(),
  },
  (t) => tortured(t, { only: [sale, sale], rabbit: true }),
)
