// The providers that EMAIL_PROVIDER names, in its order, and where the rate is counted: in Redis when REDIS_URL is set, in
// Postgres while that is away, else in Postgres. The clients are loaded only where they are used.

import type { Database } from '../../db/open.ts'
import { openRates } from '../../db/rates.ts'
import type { SlotRates } from '../../domain/rates.ts'
import { createBreakers } from '../breakers.ts'
import type { Log } from '../log.ts'
import { fallbackRates } from '../rates.ts'
import type { EmailConfig, ProviderName } from './config.ts'
import { createLogProvider } from './log.ts'
import type { EmailProvider } from './provider.ts'
import type { SmtpServer } from './smtpUrl.ts'

export async function openProviders(config: EmailConfig): Promise<EmailProvider[]> {
  const timeoutMs = config.EMAIL_TIMEOUT * 1000
  const isDry = config.EMAIL_DRY_RUN === 'on'

  async function open(name: ProviderName): Promise<EmailProvider> {
    if (name === 'mailgun') {
      const { createMailgun } = await import('./mailgun.ts')
      return createMailgun({
        url: String(config.MAILGUN_URL),
        domain: String(config.MAILGUN_DOMAIN),
        apiKey: String(config.MAILGUN_API_KEY),
        timeoutMs,
        testMode: isDry,
      })
    }
    if (name === 'log' || isDry) return createLogProvider(config.FLEET_DATA_DIR, name)
    const { createSmtp } = await import('./smtp.ts')
    return createSmtp({ server: config.SMTP_URL as SmtpServer, timeoutMs })
  }
  return await Promise.all(config.EMAIL_PROVIDER.map(open))
}

/** A Redis that does not answer at the start is found out by the first who ask. */
const readyMs = 500

/** The client of Redis is 4 MB: a worker that waits for its first mail does without it. */
export function openSlots(
  { db }: Database,
  redisUrl: string | undefined,
  log: Log,
): { slots: SlotRates; close(): Promise<void> } {
  const postgres = openRates(db)
  if (redisUrl === undefined) return { slots: postgres, close: async () => {} }
  const breaker = createBreakers({ log })('redis')
  let opening: ReturnType<typeof open> | undefined

  async function open(url: string) {
    const { openRedis } = await import('../../redis/open.ts')
    const { openRedisRates } = await import('../../redis/rates.ts')
    const onError = (error: Error) => log.debug({ err: error }, 'no connection to Redis')
    const { redis, ready, close } = openRedis({ url, name: 'email', onError })
    await ready(readyMs).catch(() => {})
    return { slots: fallbackRates({ redis: openRedisRates(redis), postgres, breaker }), close }
  }

  return {
    slots: {
      async reserve(rate, want) {
        opening ??= open(redisUrl)
        return await (await opening).slots.reserve(rate, want)
      },
    },
    close: async () => await (await opening)?.close(),
  }
}
