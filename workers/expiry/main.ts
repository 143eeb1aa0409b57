// The expiry worker: every EXPIRY_INTERVAL it frees the holds that nobody paid for in time.

import { Counter } from 'prom-client'
import { readConfig } from '../config.ts'
import { main } from '../worker.ts'
import { expirySettings } from './config.ts'
import { expiryPass } from './expiry.ts'

await main({
  name: 'expiry',
  env: process.env,
  read: (env) => readConfig(expirySettings, env),
  metricsPort: 9404,
  poolMax: 2,
  setup({ config, database, log }) {
    const expired = new Counter({ name: 'reservations_expired_total', help: 'Holds freed' })
    const pass = expiryPass({
      db: database.db,
      batchMax: config.EXPIRY_BATCH,
      onExpired(count) {
        expired.inc(count)
        if (count > 0) log.info({ count }, 'freed holds whose time was over')
      },
    })
    return { loops: [{ name: 'expiry', pass, idleMs: config.EXPIRY_INTERVAL * 1000 }] }
  },
})
