// fleet items:embed: has items embedded that were not, or not by the model of EMBEDDING_MODEL: after a vendor was set, or
// another model. Makes jobs; the embed worker does them, as fast as the vendor lets it.

import { enqueueUnembedded } from '../../db/items.ts'
import { transaction } from '../../db/transaction.ts'
import { readConfig } from '../../workers/config.ts'
import { embedSettings } from '../../workers/embed/config.ts'
import { withDatabase } from '../database.ts'
import { jsonOption } from '../jobs/options.ts'
import { type Command, Exit } from '../program.ts'

type Batch = Awaited<ReturnType<typeof enqueueUnembedded>>

/** Items looked at in one transaction. */
const batchMax = 1000

export const embed: Command<{ json: boolean }> = (context) => ({
  command: 'items:embed',
  describe: 'make jobs for items that are not embedded by the model of EMBEDDING_MODEL',
  builder: (yargs) => yargs.option('json', jsonOption),
  handler: async ({ json }) => {
    const { EMBEDDING_MODEL } = embedSettings
    const { EMBEDDING_MODEL: model } = readConfig({ EMBEDDING_MODEL }, context.env)
    let sent = 0
    await withDatabase(context.env, async ({ db }) => {
      let after: string | null = null
      do {
        const from: string | null = after
        const batch: Batch = await transaction(
          db,
          (tx) => enqueueUnembedded(tx, model, from, batchMax),
          { isolation: 'read committed' },
        )
        sent += batch.sent
        after = batch.last
        context.terminal?.show(`${sent} jobs`)
      } while (after !== null)
    })
    context.terminal?.show('')
    if (json) context.say(JSON.stringify({ sent }, null, 2))
    else if (sent > 0) context.say(`${sent} items are embedded by jobs: jobs stats embed`)
    if (sent === 0) throw new Exit('nothing', 'every item is embedded')
  },
})
