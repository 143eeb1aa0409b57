// The waiting room: people stand in line here until it is their turn to buy.

import { main } from '../worker.ts'
import { readWaitingroomConfig } from './config.ts'
import { openWaitingroom } from './waitingroom.ts'

await main({
  name: 'waitingroom',
  env: process.env,
  read: readWaitingroomConfig,
  metricsPort: 9408,
  poolMax: 4,
  async setup({ config, database, log, dying }) {
    const room = await openWaitingroom({ db: database.db, config, log })
    const port = await room.listen()
    log.info({ port, store: room.store.name }, `waits at http://${config.WAITINGROOM_HOST}:${port}`)
    return {
      loops: room.loops,
      stop: () => room.stop(dying),
      close: room.close,
    }
  },
})
