// A mail as it goes out where we make it ourselves: MIME with a text and an HTML part. Long lines, emoji and writing from
// right to left are the composer's business (quoted-printable, encoded words); neither files nor URLs are read, whatever
// a template says.

import { headersOf, type Mail, messageIdOf } from './provider.ts'

export async function composeMail(mail: Mail): Promise<Buffer> {
  // Loaded with the first mail: a worker that waits does without it.
  const { default: MailComposer } = await import('nodemailer/lib/mail-composer')
  const { from, to, subject, html, text, date } = mail
  const headers = headersOf(mail)
  const messageId = messageIdOf(mail)
  const content = { from, to, subject, html, text, date, messageId, headers, newline: 'windows' }
  const closed = { disableFileAccess: true, disableUrlAccess: true }
  return await new MailComposer({ ...content, ...closed }).compile().build()
}

/** `Name <a@b.c>` is a@b.c. */
export const addressOf = (sender: string): string => /<([^<>]+)>$/.exec(sender)?.[1] ?? sender
