// A push as FCM's message (https://firebase.google.com/docs/reference/fcm/rest/v1/projects.messages). FCM has no
// idempotency: what is sent twice since the first outcome is unknown has the same tag, collapse id and topic, by which the
// phone shows it once.

import { createHash } from 'node:crypto'
import type { Push } from './provider.ts'

/** FCM keeps nothing for longer than 28 days. */
const ttlMaxSeconds = 2_419_200

export function toMessage({ job, device, expiresAt }: Push, now = Date.now()): object {
  const { template, payload, collapse_key: key } = job
  const { title, body, data = {} } = payload
  const isHigh = job.priority === 'high'
  const shownAs = key ?? job.job_id
  const leftSeconds = Math.max(0, Math.floor((expiresAt.getTime() - now) / 1000))
  const ttl = Math.min(ttlMaxSeconds, leftSeconds)
  return {
    [device.kind]: device.value,
    notification: { title, body },
    ...(Object.keys(data).length > 0 && { data }),
    android: {
      priority: isHigh ? 'HIGH' : 'NORMAL',
      ttl: `${ttl}s`,
      // A phone keeps four of them: only for what one replaces the other of.
      ...(key !== undefined && { collapse_key: key }),
      notification: { tag: shownAs },
    },
    apns: {
      headers: {
        'apns-priority': isHigh ? '10' : '5',
        'apns-expiration': String(Math.floor(now / 1000) + ttl),
        'apns-collapse-id': shownAs,
      },
    },
    webpush: {
      headers: {
        TTL: String(ttl),
        Urgency: isHigh ? 'high' : 'normal',
        // RFC 8030 5.4: 32 characters of base64url.
        Topic: createHash('sha256').update(shownAs).digest('base64url').slice(0, 32),
      },
    },
    fcm_options: { analytics_label: template },
  }
}
