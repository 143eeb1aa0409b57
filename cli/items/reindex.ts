// fleet items:reindex: makes what items are found by anew. The index in OpenSearch, when OPENSEARCH_URL is set; and the
// codes in Postgres, by which similar items are preselected (words are indexed with each row there). Searches and writes go
// on meanwhile.

import { dueSpaces, rebuildCodes } from '../../db/itemCodes.ts'
import type { Db } from '../../db/schema.ts'
import { readConfig } from '../../workers/config.ts'
import { openSearchSettings } from '../../workers/openSearchSettings.ts'
import { openSearch, SearchFault } from '../../workers/opensearch.ts'
import { withDatabase } from '../database.ts'
import { jsonOption } from '../jobs/options.ts'
import { type Command, type Context, Exit } from '../program.ts'
import { type Rebuilt, rebuildIndex } from './rebuild.ts'

export const reindex: Command<{ json: boolean }> = (context) => ({
  command: 'items:reindex',
  describe: 'make anew what items are found by, in OpenSearch and Postgres, while all goes on',
  builder: (yargs) => yargs.option('json', jsonOption),
  handler: async ({ json }) => {
    const config = readConfig(openSearchSettings, context.env)
    const { OPENSEARCH_URL: url, OPENSEARCH_INDEX: alias } = config
    const stopping = new AbortController()
    context.onStop(() => stopping.abort(new Exit('failed', 'stopped; run it again to go on')))
    const { signal } = stopping
    const done = await withDatabase(context.env, async ({ db }) => {
      const codes = await reindexCodes(context, db, signal)
      if (url === undefined) return { codes }
      const search = openSearch({ url, alias, timeoutMs: config.OPENSEARCH_TIMEOUT_MS })
      const tell = progress(context, `${alias} in OpenSearch`)
      const index = await rebuildIndex({ db, search, signal, tell }).catch((error) => {
        throw error instanceof SearchFault ? new Exit('failed', error.message) : error
      })
      return { codes, index }
    })
    context.terminal?.show('')
    if (json) context.say(JSON.stringify(done, null, 2))
    else tellDone(context, done)
  },
})

/** @returns how many vectors got new codes */
async function reindexCodes(context: Context, db: Db, signal: AbortSignal): Promise<number> {
  const tell = progress(context, 'codes in Postgres')
  let all = 0
  for (const spaceId of await dueSpaces(db, true)) {
    const rebuild = rebuildCodes(db, spaceId)
    do {
      signal.throwIfAborted()
      tell({ done: rebuild.done(), total: rebuild.total() })
    } while (await rebuild.more())
    all += rebuild.done()
  }
  return all
}

const everyMs = 200

/** One line over the other on a terminal, one in ten seconds elsewhere. */
function progress({ terminal, warn }: Context, what: string) {
  const begunAt = performance.now()
  let toldAt = begunAt
  return ({ done, total, wait }: { done: number; total: number; wait?: string }) => {
    const now = performance.now()
    if (now - toldAt < (terminal ? everyMs : 10_000) && wait === undefined) return
    toldAt = now
    const percent = total === 0 ? 100 : Math.floor((100 * done) / total)
    const left =
      done === 0 ? '' : `, ${Math.ceil(((now - begunAt) / done) * ((total - done) / 1000))} s left`
    const line = `${what}: ${done} of ${total} (${percent} %)${wait ? `, waits: ${wait}` : left}`
    if (terminal) terminal.show(line)
    else warn(line)
  }
}

function tellDone({ say }: Context, { codes, index }: { codes: number; index?: Rebuilt }): void {
  say(`Postgres: ${codes} codes of embedded items made anew; words are indexed with each item`)
  if (index === undefined) return
  const { index: name, replaced, items, resumed } = index
  say(`OpenSearch: ${name} has ${items} items${resumed ? ', some of an earlier run' : ''}`)
  say(
    replaced === undefined ? 'it is searched from now on' : `it is searched instead of ${replaced}`,
  )
}
