// The provider `smtp`: a mail server, over a few connections that are kept open. It cannot be asked afterwards what became
// of a mail. So it is watched how far one got: before its text was asked for (354) it is certainly not there; after
// that, until the server's answer, nobody knows. https://www.rfc-editor.org/rfc/rfc5321

import { Readable } from 'node:stream'
import type SMTPConnection from 'nodemailer/lib/smtp-connection'
import { addressOf, composeMail } from './mime.ts'
import type { EmailProvider, Mail, SendOutcome } from './provider.ts'
import { isOfMail, meaningOf, type SmtpError } from './smtpAnswers.ts'
import type { SmtpServer } from './smtpUrl.ts'

export type SmtpOptions = {
  server: SmtpServer
  timeoutMs: number
  connectionsMax?: number
}

type Connection = { smtp: SMTPConnection; sent: number; isBroken: boolean; idle?: NodeJS.Timeout }

/** Servers end sessions after some hundred mails, or some minutes of silence: we do before them. */
const mailsMax = 100
const idleMs = 20_000
/** The answer to a text may take minutes (RFC 5321 4.5.3.2.6); a job has two in all. */
const answerFactor = 3

export function createSmtp(options: SmtpOptions): EmailProvider {
  const { server, timeoutMs, connectionsMax = 20 } = options
  const idle: Connection[] = []
  const open = new Set<Connection>()
  const waiting: (() => void)[] = []
  let busy = 0

  async function connect(): Promise<Connection> {
    const { default: Client } = await import('nodemailer/lib/smtp-connection')
    const smtp = new Client({
      ...server.connection,
      connectionTimeout: timeoutMs,
      greetingTimeout: timeoutMs,
      socketTimeout: answerFactor * timeoutMs,
    })
    const connection: Connection = { smtp, sent: 0, isBroken: false }
    open.add(connection)
    smtp.on('end', () => drop(connection))
    try {
      await done((tell) => {
        smtp.once('error', tell)
        smtp.connect((error) => tell(error))
      })
      const { auth } = server
      if (auth) await done((tell) => smtp.login({ credentials: auth }, (error) => tell(error)))
    } catch (error) {
      drop(connection)
      throw error
    }
    // What breaks it between two mails concerns neither.
    smtp.removeAllListeners('error').on('error', () => drop(connection))
    return connection
  }

  function drop(connection: Connection): void {
    connection.isBroken = true
    open.delete(connection)
    clearTimeout(connection.idle)
    const place = idle.indexOf(connection)
    if (place >= 0) idle.splice(place, 1)
    connection.smtp.close()
  }

  function keep(connection: Connection): void {
    connection.sent++
    if (connection.isBroken || connection.sent >= mailsMax) quit(connection)
    else {
      idle.push(connection)
      connection.idle = setTimeout(() => quit(connection), idleMs).unref()
    }
  }

  function quit(connection: Connection): void {
    const place = idle.indexOf(connection)
    if (place >= 0) idle.splice(place, 1)
    clearTimeout(connection.idle)
    if (!connection.isBroken) connection.smtp.quit()
  }

  /** Over a connection that may have ended unnoticed the mail is tried once more over a new one, if its text did not leave. */
  async function deliver(mail: Mail, signal: AbortSignal): Promise<SendOutcome> {
    const message = await composeMail(mail)
    for (;;) {
      const kept = idle.pop()
      clearTimeout(kept?.idle)
      let connection: Connection
      try {
        connection = kept ?? (await connect())
      } catch (error) {
        return { ...meaningOf(error as SmtpError, 'connecting'), is: 'down' }
      }
      const text = watched(message)
      const onAbort = () => drop(connection)
      signal.addEventListener('abort', onAbort, { once: true })
      try {
        if (signal.aborted) throw signal.reason
        const envelope = { from: addressOf(mail.from), to: [mail.to], size: message.length }
        await done((tell) => {
          connection.smtp.once('error', tell)
          connection.smtp.send(envelope, text.stream, (error) => {
            connection.smtp.off('error', tell)
            tell(error)
          })
        })
        keep(connection)
        return { is: 'sent' }
      } catch (error) {
        const { responseCode } = error as SmtpError
        const hadBegun = text.hasBegun()
        if (isOfMail(error as SmtpError)) {
          keep(connection)
          return meaningOf(error as SmtpError, 'asking')
        }
        drop(connection)
        if (kept && !hadBegun && responseCode === undefined && !signal.aborted) continue
        return meaningOf(error as SmtpError, hadBegun ? 'sending' : 'asking')
      } finally {
        signal.removeEventListener('abort', onAbort)
      }
    }
  }

  return {
    name: 'smtp',
    async send(mail, signal) {
      if (busy >= connectionsMax) await new Promise<void>((resolve) => waiting.push(resolve))
      busy++
      try {
        return await deliver(mail, signal)
      } finally {
        busy--
        waiting.shift()?.()
      }
    },
    async close() {
      for (const connection of [...open]) quit(connection)
    },
  }
}

/** The text of a mail that knows whether anybody began to read it: that is after the server has asked for it. */
function watched(message: Buffer): { stream: Readable; hasBegun(): boolean } {
  let begun = false
  const stream = new Readable({
    read() {
      begun = true
      this.push(message)
      this.push(null)
    },
  })
  return { stream, hasBegun: () => begun }
}

const done = (begin: (tell: (error?: Error | null) => void) => void): Promise<void> =>
  new Promise((resolve, reject) => {
    begin((error) => (error ? reject(error) : resolve()))
  })
