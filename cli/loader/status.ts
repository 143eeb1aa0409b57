// fleet loader:status: how each source stands: its cursor, how far it is behind, how fast it goes, what was wrong last.

import { readSourceStatus, type SourceStatus } from '../../db/loaderSources.ts'
import { withDatabase } from '../database.ts'
import { jsonOption } from '../jobs/options.ts'
import { type Command, type Context, Exit } from '../program.ts'
import { age, table } from '../table.ts'

export const status: Command<{ source: string[]; json: boolean }> = (context) => ({
  command: 'loader:status [source..]',
  describe: 'the event loader’s sources: state, cursor, lag, rate, last error',
  builder: (yargs) =>
    yargs
      .positional('source', {
        type: 'string',
        array: true,
        default: [] as string[],
        defaultDescription: 'all',
        describe: 'names',
      })
      .option('json', jsonOption),
  handler: async ({ source: given, json }) => {
    const names = given.map(String)
    const rows = await withDatabase(context.env, ({ db }) =>
      readSourceStatus(db, names.length > 0 ? names : undefined),
    )
    if (json) context.say(JSON.stringify(rows, null, 2))
    const unknown = names.filter((name) => !rows.some(({ source }) => source === name))
    if (unknown.length > 0) throw new Exit('nothing', `there is no source ${unknown.join(', ')}`)
    if (rows.length === 0) {
      throw new Exit(
        'nothing',
        'there is no source: LOADER_SOURCES or `fleet loader:add` names some',
      )
    }
    if (!json) tell(context, rows)
  },
})

function tell({ say, columns }: Context, rows: readonly SourceStatus[]): void {
  const head = ['Source', 'State', 'Cursor', 'Lag', 'Loaded', 'Rate/s', 'Owner', 'Last error']
  const cells = rows.map((row) => [
    row.source,
    row.failures > 0 ? `${row.state} (${row.failures})` : row.state,
    row.last_id,
    lagOf(row),
    row.loaded,
    row.rate_per_second.toFixed(1),
    row.owner ?? '-',
    errorOf(row),
  ])
  for (const line of table(head, cells, { width: columns, cut: ['Last error', 'Owner'] })) say(line)
}

/** Events where the source tells its newest; else since it last went well, and since its last event. */
function lagOf({ lag_events, lag_seconds, event_seconds }: SourceStatus): string {
  if (lag_events !== null) return `${lag_events} events`
  if (lag_seconds === null) return '-'
  const quiet = event_seconds === null ? 'no event yet' : `event ${age(event_seconds)} ago`
  return lag_seconds > 10 ? `asked ${age(lag_seconds)} ago, ${quiet}` : quiet
}

function errorOf({ last_error, failed_at }: SourceStatus): string {
  if (last_error === null || failed_at === null) return ''
  return `${age((Date.now() - failed_at.getTime()) / 1000)} ago: ${last_error}`
}
