// The provider that PUSH_PROVIDER asks for. Only the one that is used is loaded, and with the first push: a worker that
// waits does without HTTP/2.

import type { PushConfig } from './config.ts'
import type { PushProvider } from './provider.ts'

export function openProvider(config: PushConfig, concurrency: number): PushProvider {
  let opened: Promise<PushProvider> | undefined

  async function open(): Promise<PushProvider> {
    const { FCM_CREDENTIALS: credentials } = config
    if (config.PUSH_PROVIDER === 'fcm' && credentials !== undefined) {
      const { createFcmProvider } = await import('./fcm.ts')
      return createFcmProvider({
        url: config.FCM_URL,
        credentials,
        validateOnly: config.FCM_VALIDATE_ONLY === 'true',
        concurrency,
        answerMs: config.FCM_TIMEOUT_MS,
      })
    }
    const { createLogProvider } = await import('./log.ts')
    return createLogProvider(config.FLEET_DATA_DIR)
  }

  return {
    name: config.PUSH_PROVIDER,
    async send(push, turn, signal) {
      opened ??= open()
      return await (await opened).send(push, turn, signal)
    },
    async close() {
      await (await opened)?.close()
    },
  }
}
