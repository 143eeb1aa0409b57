// The provider `log`: writes each mail as an .eml file, as it would go out, and sends it to nobody. The file is named
// by the mail's id and comes to be whole, so a second run of a job writes the same file again, or finds it.

import { randomUUID } from 'node:crypto'
import { access, mkdir, open, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { composeMail } from './mime.ts'
import type { EmailProvider, Mail } from './provider.ts'

export function createLogProvider(dataDir: string, name = 'log'): EmailProvider {
  const folder = join(dataDir, 'mail')
  const fileOf = ({ id }: Mail) => join(folder, `${id}.eml`)

  async function write(mail: Mail): Promise<void> {
    const message = await composeMail(mail)
    await mkdir(folder, { recursive: true })
    const path = fileOf(mail)
    const draft = `${path}.${randomUUID()}.tmp`
    try {
      const file = await open(draft, 'wx', 0o640)
      try {
        await file.writeFile(message)
        await file.sync()
      } finally {
        await file.close()
      }
      await rename(draft, path)
    } catch (error) {
      await rm(draft, { force: true })
      throw error
    }
  }

  return {
    name,
    async send(mail) {
      try {
        await write(mail)
        return { is: 'sent' }
      } catch (error) {
        return { is: 'down', why: (error as Error).message }
      }
    },
    async find(mail) {
      const isThere = await access(fileOf(mail)).then(
        () => true,
        () => false,
      )
      return isThere ? { is: 'there' } : { is: 'absent', isCertain: true }
    },
  }
}
