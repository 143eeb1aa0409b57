// The port to whoever takes mails. A provider's expected answers are data; what it throws is a fault of ours or of the
// way to it, and is tried again like `retry`.

export type Mail = {
  /** The job's id: names the mail in all its attempts. */
  id: string
  from: string
  to: string
  subject: string
  html: string
  text: string
  /** The order of the job, not of the attempt. */
  date: Date
}

export type SendOutcome =
  | { is: 'sent' }
  /** Not now; `afterMs` is what the other side asked for, 0 when it did not say. */
  | { is: 'retry'; afterMs: number; why: string }
  /** Never: the mail or the address is refused for good. */
  | { is: 'rejected'; why: string }

export type EmailProvider = {
  name: string
  /** The signal aborts when the caller cannot wait longer. */
  send(mail: Mail, signal: AbortSignal): Promise<SendOutcome>
}

/** The id under which the world knows a mail (RFC 5322 3.6.4): the same in every attempt. */
export const messageIdOf = ({ id, from }: Mail): string =>
  `<${id}@${/@([^\s>@]+)>?$/.exec(from)?.[1] ?? 'flotilla.example'}>`
