// What a mail server's answers mean: 4xx for now, 5xx for good (RFC 5321 4.2.1), and for what: the connection and the
// sender concern every mail, the recipient and the text this one.

import type { SendOutcome } from './provider.ts'

/** As nodemailer makes them. */
export type SmtpError = Error & {
  code?: string
  responseCode?: number
  command?: string
  response?: string
}

/** How far the mail had got. */
export type Stage = 'connecting' | 'asking' | 'sending'

/** 4.7.x with such words, or 421 and 45x: it has had enough of us, whatever the mail. */
const limitWords = /too many|rate|throttl|limit|slow down|4\.7\.28/i
const whyMax = 300

/** Not even asked for: it is larger than the server said it takes, or of no form that it could be asked for in. */
export const isOfMail = ({ code, responseCode }: SmtpError): boolean =>
  responseCode === undefined && (code === 'EMESSAGE' || code === 'EENVELOPE')

export function meaningOf(error: SmtpError, stage: Stage): SendOutcome & { why: string } {
  const { responseCode, command = '' } = error
  const said = (error.response ?? error.message).replaceAll(/\s+/g, ' ')
  if (typeof responseCode !== 'number') {
    const why = `${said} (${error.code ?? error.name})`.slice(0, whyMax)
    if (isOfMail(error)) return { is: 'rejected', why }
    // The text had been asked for, and no answer came.
    return stage === 'sending' ? { is: 'unknown', why } : { is: 'down', why }
  }
  const why = `the mail server answered ${said}${command && ` to ${command}`}`.slice(0, whyMax)
  // It closes the connection, or will not have us as its sender.
  if (stage === 'connecting' || responseCode === 421) return { is: 'down', why }
  if (responseCode < 500) {
    const limits = limitWords.test(said)
    return { is: 'retry', afterMs: 0, why, ...(limits && { limits }) }
  }
  const isSender = command === 'MAIL FROM' && responseCode !== 552
  return isSender ? { is: 'down', why } : { is: 'rejected', why }
}
