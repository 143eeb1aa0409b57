// The settings of whoever speaks with OpenSearch.

import { int, requiredText, text } from './config.ts'

export const openSearchSettings = {
  OPENSEARCH_URL: text({
    doc: 'OpenSearch, with user and password if it wants them; unset: items are searched in Postgres',
    secret: true,
    parse: (value) => {
      if (URL.canParse(value) && /^https?:$/.test(new URL(value).protocol)) return value
      throw new Error('must be a URL that begins with https:// or http://')
    },
  }),
  OPENSEARCH_INDEX: requiredText({
    doc: 'the alias that items are searched by; `<alias>-next` is the index being built',
    fallback: 'items',
    parse: (value) => {
      if (/^[a-z0-9][a-z0-9_-]{0,99}$/.test(value)) return value
      throw new Error('must be of small letters, digits, - and _')
    },
  }),
  OPENSEARCH_TIMEOUT_MS: int({
    doc: 'how long an answer of OpenSearch may take, ms',
    fallback: 30_000,
    min: 100,
    max: 60_000,
  }),
} as const
