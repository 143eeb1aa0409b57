// A change that somebody asked for, with its row in operator_actions: written before, settled after, so that none is
// made that nobody can read of. Gives the id of the row, for the next page to tell what came of it.

import {
  beginAction,
  endAction,
  type NewAction,
  type Operator,
} from '../../../db/operatorActions.ts'
import { AppError } from '../../../domain/errors.ts'
import type { ConsoleParts, Signed } from './visit.ts'

export const operatorOf = ({ address, session }: Signed): Operator => ({
  who: 'console',
  address,
  session: session.id.slice(0, 6),
})

export type Outcome = {
  /** A sentence for people. */
  says: string
  /** How many things were changed. */
  done: number
}

type What = Pick<NewAction, 'action' | 'subject' | 'detail'>

/** @throws what `change` throws, after the row says that it failed */
export async function act(
  { db, log, figures }: ConsoleParts,
  visit: Signed,
  what: What,
  change: () => Promise<Outcome>,
): Promise<string> {
  const id = await beginAction(db, { ...operatorOf(visit), ...what })
  const { says, done } = await change().catch(async (error) => {
    const why = error instanceof AppError ? error.message : 'an error; the log has it'
    await endAction(db, id, 'failed', why).catch(() => {})
    throw error
  })
  figures.forget()
  const { action, subject } = what
  log.info({ action, subject, done, ip: visit.address, request_id: visit.requestId }, says)
  // When this fails the row stays as it is: what was done is not said to have failed.
  await endAction(db, id, 'done', says, done)
  return id
}

export const isId = (text: string): boolean =>
  /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(text)

/** Which of `words` the button said. @throws AppError when it is none */
export function pressed<T extends string>(visit: Signed, ...words: readonly T[]): T {
  const given = field(visit, 'do')
  const word = words.find((one) => one === given)
  if (word !== undefined) return word
  throw new AppError('BAD_REQUEST', `the form can ${words.join(', ')}: load the page again`)
}

/** A field of a form. @throws AppError when it is not there, or cannot be kept */
export function field({ form }: Signed, name: string): string {
  const value = form.get(name)
  if (value?.includes('\0')) throw new AppError('BAD_REQUEST', `${name} must have no NUL in it`)
  if (value !== null && value !== '') return value
  throw new AppError('BAD_REQUEST', `the form lacks ${name}: load the page again`)
}
