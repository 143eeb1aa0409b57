// The port to whoever takes mails. A provider's answers are data: what they mean for the mail, and for those after it. A
// provider throws nothing but faults of this code, after which nobody knows where the mail is.

export type Mail = {
  /** The job's id: names the mail in all its attempts. */
  id: string
  template: string
  from: string
  to: string
  subject: string
  html: string
  text: string
  /** The order of the job, not of the attempt. */
  date: Date
}

export type SendOutcome =
  /** It is theirs now. */
  | { is: 'sent' }
  /**
   * Refused for now, and certainly not there; `afterMs` is what the other side asked for, 0 when it did not say.
   * `limits`: it refuses whatever we send.
   */
  | { is: 'retry'; afterMs: number; why: string; limits?: boolean }
  /** Never: the mail or the address is refused for good. */
  | { is: 'rejected'; why: string }
  /** Certainly not there, whatever the mail: it cannot be reached, or does not let us in. */
  | { is: 'down'; why: string }
  /** It may be there or not: no answer, or one that says nothing. */
  | { is: 'unknown'; why: string }

export type Found =
  | { is: 'there' }
  /** It was there, and was refused for good. */
  | { is: 'rejected'; why: string }
  /** Not known, so far: what is taken may become visible later, unless it is certain. */
  | { is: 'absent'; isCertain?: boolean }
  | { is: 'cannot'; why: string }

export type EmailProvider = {
  name: string
  /** The signal aborts when the caller cannot wait longer. */
  send(mail: Mail, signal: AbortSignal): Promise<SendOutcome>
  /** What became of a mail that was handed over `ageMs` ago. Left out: it cannot be asked. */
  find?(mail: Mail, ageMs: number, signal: AbortSignal): Promise<Found>
  close?(): Promise<void>
}

/** The id under which the world knows a mail (RFC 5322 3.6.4): the same in every attempt, at every provider. */
export const messageIdOf = ({ id, from }: Mail): string =>
  `<${id}@${/@([^\s>@]+)>?$/.exec(from)?.[1] ?? 'flotilla.example'}>`

/** What every mail of ours says besides. */
export const headersOf = ({ id }: Mail) => ({
  'X-Flotilla-Job': id,
  'Auto-Submitted': 'auto-generated',
})
