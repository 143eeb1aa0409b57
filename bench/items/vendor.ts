// Thirty items through a vendor that allows 40 requests and 6000 tokens a minute, by two embed workers, a minute being five
// seconds: what the vendor saw.

import { sql } from 'kysely'
import { makeItem } from '../../test/itemRuns.ts'
import { apiKey, model, startEmbedding } from '../../test/servers/embedding.ts'
import type { Place } from '../loader/place.ts'
import { startWorker, stopWorker, untilDone } from './place.ts'

const windowMs = 5000

export async function embedThirty(place: Place) {
  const { db } = place.database
  const server = await startEmbedding()
  try {
    // 2 to 10 s of a minute.
    const limits = { requests: 40, tokens: 600, windowMs, kind: 'window' } as const
    await server.mood({ limits, latencyMs: 400 })
    for (let i = 0; i < 30; i++) {
      await makeItem(db, { title: `Signed poster no ${i}`, description: 'Of the opening night' })
    }
    const settings = {
      EMBEDDING_URL: server.url,
      EMBEDDING_API_KEY: apiKey,
      EMBEDDING_MODEL: model,
      EMBEDDING_WINDOW_MS: String(windowMs),
    }
    const workers = [startWorker(place, 'embed', settings), startWorker(place, 'embed', settings)]
    await untilDone(place, 'embed')
    await Promise.all(workers.map(stopWorker))
    const calls = await server.calls()
    const times = calls.map(({ at }) => at).sort((a, b) => a - b)
    const { rows } = await sql<{ n: number }>`
      select count(*)::int as n from item_embeddings`.execute(db)
    return {
      seconds: ((times.at(-1) ?? 0) - (times[0] ?? 0)) / 1000,
      minute: windowMs / 1000,
      calls: calls.length,
      refused: calls.filter(({ status }) => status === 429).length,
      embedded: rows[0]?.n ?? 0,
    }
  } finally {
    await server.stop()
  }
}
