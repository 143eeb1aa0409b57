// What a push is asked for with: the payload of a job in the queues `push` and `push:priority` (SPEC 10), and its limits,
// which are FCM's. A job names up to 500 devices; the worker makes one job a device of it. No I/O.

import type { QueueName } from './queues.ts'

export const pushTemplates = [
  'ticket_ready',
  'quota_invitation',
  'queue_your_turn',
  'queue_expired',
  'queue_position',
] as const
export type PushTemplate = (typeof pushTemplates)[number]

export type PushQueue = Extract<QueueName, 'push' | 'push:priority'>
export const pushQueues: readonly PushQueue[] = ['push:priority', 'push']

/** One device: an FCM registration token or a Firebase installation id. A plain text is a token. */
export type Target = string | { token: string } | { fid: string }

export type PushJob = {
  job_id: string
  type: 'push'
  template: PushTemplate
  user_id: string
  /** Up to 500 devices, each once. */
  fcm_tokens: Target[]
  payload: {
    title: string
    body: string
    data?: Record<string, string>
  }
  /** FCM's, of the delivery to the phone. Which queue it stands in says who is sent to first. */
  priority?: 'normal' | 'high'
  created_at?: string
  /** Of no use to anybody from then on: not sent any more, nor kept for a phone that is off. ISO 8601. */
  expires_at?: string
  /** Of several with this key a phone that was off shows the last. */
  collapse_key?: string
  request_id?: string
  traceparent?: string
  /** Of a job that the worker made for one device: the job that named it, and when that one was there. */
  part_of?: string
  queued_at?: string
}

export const targetsMax = 500
/** Of the message, in bytes: https://firebase.google.com/docs/cloud-messaging/customize-messages/set-message-type */
export const payloadMax = 4096
const tokenMax = 4096
const fidMax = 256

/** The kind and value of a device, as in the table `devices`. */
export function readTarget(target: Target): { kind: 'token' | 'fid'; value: string } {
  if (typeof target === 'string') return { kind: 'token', value: target }
  return 'fid' in target
    ? { kind: 'fid', value: target.fid }
    : { kind: 'token', value: target.token }
}

/**
 * Checks what a job brought; a device that is named twice is kept once.
 * @throws Error that says what is wrong with it and what is right; values are not in the message
 */
export function decodePushJob(data: unknown): PushJob {
  const job = record(data, 'a push job')
  if (job.type !== 'push') throw new Error('type must be "push"')
  if (!pushTemplates.some((name) => name === job.template)) {
    throw new Error(`template must be one of ${pushTemplates.join(', ')}`)
  }
  if (typeof job.job_id !== 'string' || !/^[\w-]{1,64}$/.test(job.job_id)) {
    throw new Error('job_id must be an id of letters, digits, - and _')
  }
  if (typeof job.user_id !== 'string' || !/^\P{Cc}{1,200}$/u.test(job.user_id)) {
    throw new Error('user_id must be a text of 1 to 200 characters')
  }
  checkPayload(job.payload)
  if (job.priority !== undefined && job.priority !== 'normal' && job.priority !== 'high') {
    throw new Error('priority must be "normal" or "high"')
  }
  for (const name of ['created_at', 'expires_at', 'queued_at']) {
    const at = job[name]
    if (at !== undefined && (typeof at !== 'string' || Number.isNaN(Date.parse(at)))) {
      throw new Error(`${name} must be a time`)
    }
  }
  // 64 bytes are what APNs takes of apns-collapse-id.
  if (job.collapse_key !== undefined && !/^[\x21-\x7e]{1,64}$/.test(String(job.collapse_key))) {
    throw new Error('collapse_key must be a text of 1 to 64 printable ASCII characters')
  }
  return { ...(data as PushJob), fcm_tokens: checkTargets(job.fcm_tokens) }
}

function checkPayload(value: unknown): void {
  const { title, body, data = {} } = record(value, 'payload')
  if (typeof title !== 'string') throw new Error('payload.title must be a text')
  if (typeof body !== 'string') throw new Error('payload.body must be a text')
  for (const [key, text] of Object.entries(record(data, 'payload.data'))) {
    if (/^(from|message_type)$|^(google|gcm)\./.test(key)) {
      throw new Error('payload.data must not use the names from, message_type, google.… and gcm.…')
    }
    if (typeof text !== 'string') throw new Error('the values in payload.data must be texts')
  }
  const bytes = Buffer.byteLength(JSON.stringify({ notification: { title, body }, data }))
  if (bytes > payloadMax) {
    throw new Error(`payload has ${bytes} bytes, and FCM takes ${payloadMax}`)
  }
}

function checkTargets(value: unknown): Target[] {
  if (!Array.isArray(value) || value.length === 0 || value.length > targetsMax) {
    throw new Error(`fcm_tokens must be a list of 1 to ${targetsMax} devices`)
  }
  const targets = new Map<string, Target>()
  for (const [i, target] of value.entries()) {
    const { kind, value: id } = readTarget(checkTarget(target, `fcm_tokens[${i}]`))
    targets.set(`${kind} ${id}`, kind === 'token' ? id : { fid: id })
  }
  return [...targets.values()]
}

function checkTarget(target: unknown, place: string): Target {
  if (typeof target === 'string') return checkId(target, place, tokenMax)
  const { token, fid } = record(target, place)
  if ((token === undefined) === (fid === undefined)) {
    throw new Error(`${place} must be a registration token, or have exactly one of token and fid`)
  }
  return token === undefined
    ? { fid: checkId(fid, `${place}.fid`, fidMax) }
    : checkId(token, `${place}.token`, tokenMax)
}

function checkId(value: unknown, place: string, max: number): string {
  if (typeof value === 'string' && value.length <= max && /^[\x21-\x7e]+$/.test(value)) return value
  throw new Error(`${place} must be a text of 1 to ${max} printable ASCII characters`)
}

function record(value: unknown, name: string): Record<string, unknown> {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
    return value as Record<string, unknown>
  }
  throw new Error(`${name} must be an object`)
}
