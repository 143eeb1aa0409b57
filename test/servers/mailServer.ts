// A mail server of a test's own (smtp-server), which keeps what it takes, parsed back by mailparser, and can be told to
// refuse at any step, to hang up, or to say nothing. Ends with the test file.

import type { AddressInfo } from 'node:net'
import { after } from 'node:test'
import { type ParsedMail, simpleParser } from 'mailparser'
import { SMTPServer, type SMTPServerOptions } from 'smtp-server'

export type Step = 'connect' | 'auth' | 'from' | 'to' | 'data'
export type Mishap =
  | { at: Step; code: number; text: string }
  /** After the whole text has come: the connection breaks, or nothing is said, and it may have been taken. */
  | { at: 'end'; does: 'hang-up' | 'silence'; takes: boolean }

export type MailServer = {
  port: number
  mails: { parsed: ParsedMail; raw: string; to: string[]; secure: boolean; user?: string }[]
  connections: number
  /** What happens, for as long as it stands. */
  mishap: Mishap | undefined
  close(): Promise<void>
}

const open = new Set<MailServer>()
after(async () => {
  for (const server of open) await server.close()
})

export async function openMailServer(options: SMTPServerOptions = {}): Promise<MailServer> {
  const fail = (at: Step): (Error & { responseCode: number }) | undefined => {
    const { mishap } = self
    if (mishap?.at !== at || !('code' in mishap)) return undefined
    return Object.assign(new Error(mishap.text), { responseCode: mishap.code })
  }
  const server = new SMTPServer({
    authOptional: true,
    disabledCommands: ['STARTTLS'],
    closeTimeout: 500,
    ...options,
    onConnect(_session, tell) {
      self.connections++
      tell(fail('connect'))
    },
    onAuth({ username, password }, _session, tell) {
      const error = fail('auth')
      if (error) return tell(error)
      if (password !== 'right') return tell(new Error('535 no'))
      tell(null, { user: username })
    },
    onMailFrom: (_address, _session, tell) => tell(fail('from')),
    onRcptTo: (_address, _session, tell) => tell(fail('to')),
    async onData(stream, session, tell) {
      const chunks: Buffer[] = []
      for await (const chunk of stream) chunks.push(chunk as Buffer)
      const raw = Buffer.concat(chunks)
      const { mishap } = self
      const error = fail('data')
      if (error) return tell(error)
      if (mishap?.at !== 'end' || ('takes' in mishap && mishap.takes)) {
        self.mails.push({
          parsed: await simpleParser(raw),
          raw: raw.toString('latin1'),
          to: session.envelope.rcptTo.map(({ address }) => address),
          secure: session.secure,
          ...(session.user && { user: session.user }),
        })
      }
      if (mishap?.at !== 'end') return tell()
      if ('does' in mishap && mishap.does === 'silence') return
      for (const connection of server.connections) {
        ;(connection as unknown as { _socket: { destroy(): void } })._socket.destroy()
      }
    },
  })
  server.on('error', () => {})
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const self: MailServer = {
    port: (server.server.address() as AddressInfo).port,
    mails: [],
    connections: 0,
    mishap: undefined,
    close: () => new Promise((resolve) => server.close(() => resolve())),
  }
  open.add(self)
  return self
}
