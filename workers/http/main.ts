// The http worker: serves the API, and runs the commands that were asked for asynchronously.

import { openJobs } from '../../db/jobs.ts'
import { openAuth } from '../auth.ts'
import { main } from '../worker.ts'
import { createCommands } from './commands.ts'
import { readHttpConfig } from './config.ts'
import { openItemsFound } from './found.ts'
import { commandPass } from './later.ts'
import { createHttpMetrics } from './metrics.ts'
import { createServer, listen } from './server.ts'
import { openStores } from './stores.ts'
import { upkeepLoops } from './upkeep.ts'

await main({
  name: 'http',
  env: process.env,
  read: readHttpConfig,
  metricsPort: 9400,
  async setup(worker) {
    const { config, database, log } = worker
    const { db } = database
    const jobs = openJobs(database)
    const stores = await openStores(database, config.REDIS_URL, log)
    const { onAnswer, onGroup } = createHttpMetrics()
    const commands = createCommands({ db, ttlSeconds: config.RESERVATION_TTL, onGroup })
    const found = openItemsFound(db, config, stores.breakers)
    const shared = { ...stores, ...commands, config, db, jobs, log, found }
    const auth = await openAuth(config)
    const app = await createServer({ ...shared, auth, onAnswer })
    await listen(app, config)
    worker.dying.addEventListener('abort', () => app.server.closeAllConnections())
    const run = commandPass({ db, jobs, commands, worker })
    return {
      loops: [
        { name: 'commands', pass: run, idleMs: 250, wokenBy: 'commands' },
        ...upkeepLoops({ db, jobs, stores, worker }),
      ],
      stop: () => app.close(),
      close: async () => void (await Promise.all([jobs.close(), stores.close()])),
    }
  },
})
