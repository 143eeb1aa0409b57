// The feature flags: each switches off one thing that is done with a vendor, by hand or, when the vendor's circuit opens,
// by itself (db/circuits.ts). A flag that nobody ever changed is on.

export type FlagName = 'embeddings' | 'search_index' | 'mail_mailgun' | 'mail_smtp'

export type Flag = {
  name: FlagName
  /** The circuit (db/circuits.ts) that switches it off when it opens, and on again when it closes. */
  circuit: string
  /** One line for people: what is not done while it is off. */
  purpose: string
}

export const flags: readonly Flag[] = [
  {
    name: 'embeddings',
    circuit: 'embedding',
    purpose: 'items are embedded by the vendor',
  },
  {
    name: 'search_index',
    circuit: 'opensearch',
    purpose: 'items are indexed and searched in OpenSearch',
  },
  {
    name: 'mail_mailgun',
    circuit: 'email:mailgun',
    purpose: 'mails are sent through Mailgun',
  },
  {
    name: 'mail_smtp',
    circuit: 'email:smtp',
    purpose: 'mails are sent through the mail server',
  },
]

export const flagsOf = (circuit: string): readonly Flag[] =>
  flags.filter((flag) => flag.circuit === circuit)
