// The loader: takes events from remote sources into the table, each once, and treats every source gently.

import { hostname } from 'node:os'
import { dropPartitions, makePartitions, openEventStore } from '../../db/loader.ts'
import { everyMinute, scheduledLoop } from '../schedule.ts'
import { main } from '../worker.ts'
import { readLoaderConfig } from './config.ts'
import { openFetchers } from './fetchers.ts'
import { createLoader, idleMs } from './loader.ts'
import { createReporter } from './report.ts'
import { createSourceList } from './sources.ts'
import { openTurns } from './turns.ts'

await main({
  name: 'loader',
  env: process.env,
  read: readLoaderConfig,
  metricsPort: 9407,
  poolMax: 6,
  async setup(worker) {
    const { config, database, log, dying } = worker
    const { db, pool } = database
    const turns = await openTurns(worker)
    const fetchers = openFetchers(config, process.env)
    const loader = createLoader({
      ...turns,
      fetchers: fetchers.byType,
      store: openEventStore(database),
      holder: `${hostname()}:${process.pid}`,
      gapMs: config.LOADER_GAP_MS,
      idleMaxMs: config.LOADER_IDLE_MAX_MS,
      batchMax: config.LOADER_BATCH,
      concurrency: worker.concurrency(64),
      on: createReporter(worker),
      dying,
    })
    const refresh = createSourceList({
      db,
      file: config.LOADER_SOURCES,
      log,
      onList: loader.setSources,
    })
    const pass = Object.assign(
      async (signal: AbortSignal, handledMax: number) => {
        await refresh()
        return await loader.pass(signal, handledMax)
      },
      { finish: loader.pass.finish },
    )
    const keep = async () => {
      await makePartitions(pool)
      const gone =
        config.LOADER_KEEP_DAYS > 0 ? await dropPartitions(db, config.LOADER_KEEP_DAYS) : []
      if (gone.length > 0) log.info({ partitions: gone }, 'dropped events that were old enough')
      return 0
    }
    return {
      loops: [
        { name: 'loader', pass, idleMs },
        scheduledLoop({ db, name: 'loader partitions', schedule: everyMinute, pass: keep }),
      ],
      async close() {
        await fetchers.close()
        await turns.close()
      },
    }
  },
})
