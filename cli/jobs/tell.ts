// How a job's fields, its failed attempts and its audit row are put to people. What strangers said is printed without
// what could move a cursor.

import type { Attempt, Audit } from '../../db/attempts.ts'
import { moment, printable } from '../table.ts'

type Say = (line: string) => void

/** One line a field; those without a value are left out. */
export function tellFields(say: Say, fields: readonly (readonly [string, string | null])[]): void {
  const there = fields.filter(([, value]) => value !== null)
  const width = Math.max(...there.map(([name]) => name.length))
  for (const [name, value] of there) say(`${name.padEnd(width)}  ${value}`)
}

export function tellAttempts(say: Say, attempts: readonly Attempt[]): void {
  if (attempts.length === 0) return
  say('')
  say('Failed attempts')
  for (const { attempt, failedAt, message, kind } of attempts) {
    const how = { failed: '', died: 'its worker died: ', late: 'too late: ', hopeless: '' }[kind]
    say(`  ${attempt}  ${moment(failedAt)}  ${how}${printable(message)}`)
  }
}

export function tellAudit(say: Say, audit: Audit): void {
  say('')
  say('Given up')
  const resolved = audit.resolvedAt && `${audit.resolvedAs} at ${moment(audit.resolvedAt)}`
  const fields: (readonly [string, string | null])[] = [
    ['Code', audit.code],
    ['Audit', audit.id],
    ['Job', audit.jobId],
    ['In dead letters', audit.deadJobId],
    ['Queue', audit.queue],
    ['Type', audit.type],
    ['Transport', audit.transport],
    ['Attempts', String(audit.attempts)],
    ['At', moment(audit.createdAt)],
    ['Resolved', resolved ?? 'no'],
  ]
  tellFields((line) => say(`  ${line}`), fields)
  for (const { attempt, failed_at, message } of audit.errors) {
    say(`  ${attempt}  ${moment(failed_at)}  ${printable(message)}`)
  }
  if (audit.stack === null) return
  say('  Last stack')
  for (const line of audit.stack.split('\n')) say(`    ${printable(line)}`)
}
