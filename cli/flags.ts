// fleet flags and flags:set: what is switched off, by whom and why; and a person's word, which no circuit overrules.

import { userInfo } from 'node:os'
import { type FlagRow, readFlags, setFlag } from '../db/flags.ts'
import { flags } from '../domain/flags.ts'
import { withDatabase } from './database.ts'
import { jsonOption } from './jobs/options.ts'
import { type Command, type Context, Exit, givenOnce, known } from './program.ts'
import { moment, table } from './table.ts'

export const flagsList: Command<{ json: boolean }> = (context) => ({
  command: 'flags',
  describe: 'the feature flags: on or off, by whom, why',
  builder: (yargs) => yargs.option('json', jsonOption),
  handler: async ({ json }) => {
    const rows = await withDatabase(context.env, ({ db }) => readFlags(db))
    if (json) context.say(JSON.stringify(rows, null, 2))
    else tell(context, rows)
  },
})

function tell({ say, columns }: Context, rows: readonly FlagRow[]): void {
  const head = ['Flag', 'State', 'Circuit', 'Changed by', 'At', 'Reason', 'When on']
  const cells = rows.map((row) => [
    row.name,
    row.enabled ? 'on' : row.is_auto ? 'off (auto)' : 'off',
    `${row.circuit} ${row.circuit_open ? 'open' : 'closed'}`,
    row.changed_at === null ? '-' : (row.changed_by ?? '-'),
    row.changed_at === null ? '-' : moment(row.changed_at),
    row.reason ?? '',
    row.purpose,
  ])
  for (const line of table(head, cells, { width: columns, cut: ['Reason', 'When on'] })) say(line)
}

type Arguments = { flag: string; state: string; reason?: string | string[]; json: boolean }

const states = [{ name: 'on' }, { name: 'off' }] as const
const reasonMax = 500

export const flagsSet: Command<Arguments> = (context) => ({
  command: 'flags:set <flag> <state>',
  describe: 'switch a feature flag on or off; off stays off until a person switches it on',
  builder: (yargs) =>
    yargs
      .positional('flag', {
        type: 'string',
        demandOption: true,
        describe: flags.map(({ name }) => name).join(', '),
      })
      .positional('state', { type: 'string', demandOption: true, describe: 'on or off' })
      .option('reason', {
        type: 'string',
        requiresArg: true,
        describe: 'why, for whoever asks later (needed)',
      })
      .option('json', jsonOption),
  handler: async ({ flag: given, state: word, reason: why, json }) => {
    const { name } = known('flag', String(given), flags)
    const enabled = known('state', String(word), states).name === 'on'
    const reason = reasonOf(givenOnce('reason', why))
    const by = whoAsks(context)
    const changed = await withDatabase(context.env, ({ db }) =>
      setFlag(db, name, enabled, { reason, by }),
    )
    const state = enabled ? 'on' : 'off'
    if (json) context.say(JSON.stringify({ flag: name, enabled, changed, by, reason }, null, 2))
    else context.say(changed ? `${name} is ${state}` : `${name} was ${state} already`)
  },
})

/** @throws Exit 2 */
function reasonOf(given: string | undefined): string {
  const reason = given?.trim() ?? ''
  if (reason !== '' && reason.length <= reasonMax && !reason.includes('\0')) return reason
  const right = `--reason must say why, in 1 to ${reasonMax} characters`
  throw new Exit('usage', `${right}: flags:set embeddings off --reason "the vendor bills double"`)
}

/** The account they work under: on a server people have their own, or sudo says whose it was. */
function whoAsks({ env }: Context): string {
  if (env.SUDO_USER) return env.SUDO_USER
  try {
    return userInfo().username
  } catch {
    // An account without a name, as in many a container.
    return `uid ${process.getuid?.() ?? 'unknown'}`
  }
}
