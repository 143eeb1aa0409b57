// fleet email:suppress: the addresses that get no mail, seen and changed by an operator.

import type { Db } from '../../db/schema.ts'
import { listSuppressions, suppress, unsuppress } from '../../db/suppressions.ts'
import { isAddress, normalAddress } from '../../domain/emails.ts'
import { withDatabase } from '../database.ts'
import { jsonOption, maxMax, maxOption, wholeNumber } from '../jobs/options.ts'
import { type Command, type Context, Exit, givenOnce, known } from '../program.ts'
import { moment, table } from '../table.ts'

type Arguments = { action?: string; address?: string; max: string; json: boolean }
type Asked = { address: string | undefined; max: number; json: boolean }

const actions = [{ name: 'list' }, { name: 'add' }, { name: 'remove' }] as const

export const emailSuppress: Command<Arguments> = (context) => ({
  command: 'email:suppress [action] [address]',
  describe: 'the addresses that get no mail: list them, add one, remove one',
  builder: (yargs) =>
    yargs
      .positional('action', { type: 'string', describe: 'list, add or remove' })
      .positional('address', { type: 'string', describe: 'one e-mail address' })
      .option('max', maxOption)
      .option('json', jsonOption),
  handler: async (args) => {
    const { name: action } = known('action', args.action, actions)
    const address = addressOf(action, args.address)
    const max = wholeNumber('max', givenOnce('max', args.max) ?? '', 1, maxMax)
    const asked = { address, max, json: args.json }
    await withDatabase(context.env, async ({ db }) => {
      if (action === 'list') await list(context, db, asked)
      else await change(context, db, action, asked)
    })
  },
})

/** @throws Exit 2 */
function addressOf(action: string, given: string | undefined): string | undefined {
  if (given === undefined && action === 'list') return undefined
  const address = normalAddress(given ?? '')
  if (isAddress(address)) return address
  throw new Exit('usage', `${action} needs one e-mail address such as ann@example.com`)
}

async function list({ say, columns }: Context, db: Db, asked: Asked): Promise<void> {
  const found = await listSuppressions(db, asked)
  if (asked.json) say(JSON.stringify(found, null, 2))
  else if (found.length > 0) {
    const rows = found.map(({ address, reason, source, created_at }) => [
      address,
      reason,
      source,
      moment(created_at),
    ])
    const fit = { width: columns, cut: ['Address'] }
    for (const line of table(['Address', 'Reason', 'Source', 'Since'], rows, fit)) say(line)
  }
  if (found.length > 0) return
  throw new Exit('nothing', asked.address ? 'it is not suppressed' : 'no address is suppressed')
}

async function change(
  { say }: Context,
  db: Db,
  action: 'add' | 'remove',
  { address = '', json }: Asked,
): Promise<void> {
  const isNew =
    action === 'add'
      ? await suppress(db, { address, reason: 'manual', source: 'operator' })
      : await unsuppress(db, address)
  if (json)
    say(JSON.stringify({ address, [action === 'add' ? 'added' : 'removed']: isNew }, null, 2))
  else if (action === 'add') {
    say(isNew ? `${address} gets no mail any more` : `${address} was suppressed already`)
  } else if (isNew) {
    // Mailgun keeps a list of its own, by which it refuses what we send.
    say(`${address} gets mail again, if the provider has it on no list of its own`)
  }
  if (action === 'remove' && !isNew) throw new Exit('nothing', `${address} is not suppressed`)
}
