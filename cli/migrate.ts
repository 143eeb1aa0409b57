// fleet migrate: brings the database to the schema of this code.

import { migrate as migrateDatabase } from '../db/migrate.ts'
import { givenDirectly, reaching, runningDatabase, withoutPassword } from './database.ts'
import type { Command } from './program.ts'

export const migrate: Command = (context) => ({
  command: 'migrate',
  describe: 'bring the database to the schema of this code',
  handler: async () => {
    const url = givenDirectly(context.env) ?? (await runningDatabase(context.env))
    const applied = await reaching(url, () => migrateDatabase({ url, onStep: context.say }))
    const did = applied.length === 0 ? 'was current already' : 'is current now'
    context.say(`${withoutPassword(url)} ${did}`)
  },
})
