// Where items are looked for: in OpenSearch when OPENSEARCH_URL is set and it answers, else in Postgres, which knows all of
// it as well. What was found is read from Postgres, so that what is deleted or changed shows at once.

import { isEnabled } from '../../db/flags.ts'
import { type ItemBody, readItems, searchItems } from '../../db/items.ts'
import { readSimilar, readSubject, type SimilarItem, withItems } from '../../db/neighbours.ts'
import type { Db } from '../../db/schema.ts'
import { type Breaker, type Breakers, within } from '../breakers.ts'
import { readSeldom } from '../metrics.ts'
import { type OpenSearch, openSearch } from '../opensearch.ts'
import type { HttpConfig } from './config.ts'

export type ItemsFound = {
  byWords(asked: { q: string; limit: number; offset: number }): Promise<ItemBody[]>
  /** None: it is not embedded yet, or not there. */
  byLikeness(itemId: string, limit: number): Promise<SimilarItem[]>
}

export const findInPostgres = (db: Db): ItemsFound => ({
  byWords: (asked) => searchItems(db, asked),
  byLikeness: (itemId, limit) => readSimilar(db, itemId, limit),
})

type FoundConfig = Pick<HttpConfig, 'OPENSEARCH_URL' | 'OPENSEARCH_INDEX'>

export function openItemsFound(
  db: Db,
  { OPENSEARCH_URL: url, OPENSEARCH_INDEX: alias }: FoundConfig,
  breakers: Breakers,
): ItemsFound {
  if (url === undefined) return findInPostgres(db)
  const search = openSearch({ url, alias, timeoutMs: answerMs })
  const isOn = readSeldom(() => isEnabled(db, 'search_index'), 1000)
  return findInOpenSearch(db, { search, breaker: breakers('opensearch'), isOn })
}

/** A person waits: longer than that, and Postgres is asked. */
const answerMs = 1500

export function findInOpenSearch(
  db: Db,
  {
    search,
    breaker,
    isOn,
  }: {
    search: OpenSearch
    breaker: Breaker
    /** Whether a person, or its circuit, has it switched off. */
    isOn(): Promise<boolean>
  },
): ItemsFound {
  const postgres = findInPostgres(db)

  async function tried<T>(ask: () => Promise<T>): Promise<T | undefined> {
    if (!(await isOn()) || !breaker.allows()) return undefined
    try {
      const answer = await within(answerMs, ask())
      breaker.worked()
      return answer
    } catch (error) {
      breaker.failed(error)
      return undefined
    }
  }

  return {
    async byWords(asked) {
      // Undefined also where there is no index yet.
      const ids = await tried(() => search.byWords(asked))
      return ids === undefined ? await postgres.byWords(asked) : await readItems(db, ids)
    },
    async byLikeness(itemId, limit) {
      const subject = await readSubject(db, itemId)
      if (subject === undefined) return []
      const { spaceId, vector } = subject
      const near = await tried(() => search.byLikeness(spaceId, vector, limit + 1))
      if (near === undefined || near.length === 0) return await postgres.byLikeness(itemId, limit)
      return (
        await withItems(
          db,
          near.filter(({ id }) => id !== itemId),
        )
      ).slice(0, limit)
    },
  }
}
