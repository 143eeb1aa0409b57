// The push worker: sends pushes, those of the priority queue first.

import { openJobs } from '../../db/jobs.ts'
import { climbRamp } from '../../db/ramps.ts'
import { openRates } from '../../db/rates.ts'
import { recoverLoop } from '../jobs.ts'
import { main } from '../worker.ts'
import { createCircuit } from './circuit.ts'
import { readPushConfig } from './config.ts'
import { createPushMetrics } from './metrics.ts'
import { openProvider } from './open.ts'
import { createPace } from './pace.ts'
import { pushPass } from './push.ts'
import { rampedTake, slotsOf } from './ramp.ts'
import { createTurns } from './turns.ts'

const name = 'push'

await main({
  name,
  env: process.env,
  read: readPushConfig,
  metricsPort: 9405,
  poolMax: 6,
  setup(worker) {
    const { config, database, log } = worker
    const { db } = database
    const jobs = openJobs(database)
    const concurrency = worker.concurrency(500)
    const { PUSH_RATE: perSecond, PUSH_RAMP: rampSeconds, PUSH_TTL: ttlSeconds } = config
    const climb = (pressed: boolean) => climbRamp(db, { name, rampSeconds }, pressed)
    const take = rampedTake({
      perSecond,
      take: slotsOf(name, openRates(db)),
      climb: rampSeconds > 0 ? climb : undefined,
    })
    const turns = createTurns({ take, log })
    const provider = openProvider(config, concurrency)
    const circuit = createCircuit({ log, what: provider.name })
    const pace = createPace(concurrency)
    const metrics = createPushMetrics(db, circuit)
    const common = { db, jobs, provider, turns, circuit, pace, ttlSeconds, concurrency, worker }
    const options = { ...common, batchMax: config.PUSH_BATCH, ...metrics }
    log.info({ provider: provider.name, per_second: perSecond, concurrency }, 'sends pushes')
    const loops = (['push:priority', 'push'] as const).flatMap((queue) => [
      {
        name: queue,
        pass: pushPass({ ...options, queue }),
        idleMs: config.PUSH_POLL_MS,
        wokenBy: queue,
      },
      recoverLoop({ jobs, queue, worker }),
    ])
    return {
      loops,
      notReady: () => [circuit.away()].filter((why) => why !== undefined),
      async close() {
        await provider.close()
        await jobs.close()
      },
    }
  },
})
