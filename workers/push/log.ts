// The provider `log`: writes each push as a line of JSON into a file a day, and sends it to nobody. Of a device's token
// only the beginning of its hash is written: who has the token can send to the phone.

import { createHash } from 'node:crypto'
import { appendFile, mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import type { PushProvider } from './provider.ts'

export function createLogProvider(dataDir: string): PushProvider {
  const folder = join(dataDir, 'push')
  return {
    name: 'log',
    async send({ job, device: { kind, value }, expiresAt }, turn) {
      await turn()
      const at = new Date()
      const line = {
        at: at.toISOString(),
        job_id: job.job_id,
        template: job.template,
        user_id: job.user_id,
        [kind]: createHash('sha256').update(value).digest('hex').slice(0, 12),
        priority: job.priority ?? 'normal',
        expires_at: expiresAt.toISOString(),
        ...job.payload,
      }
      await mkdir(folder, { recursive: true })
      const file = join(folder, `${at.toISOString().slice(0, 10)}.ndjson`)
      await appendFile(file, `${JSON.stringify(line)}\n`, { mode: 0o640 })
      return { is: 'sent' }
    },
    async close() {},
  }
}
