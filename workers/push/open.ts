// The provider that PUSH_PROVIDER asks for. Only the one that is used is loaded.

import type { PushConfig } from './config.ts'
import type { PushProvider } from './provider.ts'

export async function openProvider(config: PushConfig, concurrency: number): Promise<PushProvider> {
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
