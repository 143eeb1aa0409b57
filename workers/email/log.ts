// The provider `log`: writes each mail as an .eml file, as it would go out, and sends it to nobody. The file is named
// by the mail's id and comes to be whole, so a second run of a job writes the same file again.

import { randomUUID } from 'node:crypto'
import { mkdir, open, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { type EmailProvider, type Mail, messageIdOf } from './provider.ts'

export function createLogProvider(dataDir: string): EmailProvider {
  const folder = join(dataDir, 'mail')

  async function compose(mail: Mail): Promise<Buffer> {
    // Loaded with the first mail: a worker that waits does without it.
    const { default: MailComposer } = await import('nodemailer/lib/mail-composer')
    const { id, from, to, subject, html, text, date } = mail
    const headers = { 'X-Flotilla-Job': id, 'Auto-Submitted': 'auto-generated' }
    const messageId = messageIdOf(mail)
    const content = { from, to, subject, html, text, date, messageId, headers, newline: 'windows' }
    // Neither files nor URLs are read, whatever a template says.
    const closed = { disableFileAccess: true, disableUrlAccess: true }
    return await new MailComposer({ ...content, ...closed }).compile().build()
  }

  return {
    name: 'log',
    async send(mail) {
      const message = await compose(mail)
      await mkdir(folder, { recursive: true })
      const path = join(folder, `${mail.id}.eml`)
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
      return { is: 'sent' }
    },
  }
}
