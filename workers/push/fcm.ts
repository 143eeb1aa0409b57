// The provider `fcm`: Firebase Cloud Messaging, HTTP v1. A push is one request, as its batches are no more. A request
// that the server has not seen (its session went away, the stream was refused, there was no connection) is made again at
// once, each time with a turn of its own; one whose outcome is unknown is left to the job's schedule.

import { type AccessTokens, createAccessTokens, TokenRefused } from './accessTokens.ts'
import { isUnauthenticated, readAnswer, retryMs } from './answers.ts'
import type { Credentials } from './credentials.ts'
import { toMessage } from './message.ts'
import type { Push, PushOutcome, PushProvider } from './provider.ts'
import { createSessions, RequestFailed, type Sessions } from './sessions.ts'

export type FcmOptions = {
  url: string
  credentials: Credentials
  /** FCM checks the message and tells nobody. */
  validateOnly: boolean
  /** Requests in flight at once. */
  concurrency: number
  answerMs: number
}

/** A session bears about a hundred. */
const streamsMax = 100
const unseenMax = 3

export function createFcmProvider(options: FcmOptions): PushProvider & { sessions: Sessions } {
  const { url, credentials, validateOnly, concurrency, answerMs } = options
  const tokens: AccessTokens = createAccessTokens(credentials)
  const sessionsMax = Math.ceil(concurrency / streamsMax) + 1
  const sessions = createSessions({ url, sessionsMax, streamsMax, answerMs })
  const path = `/v1/projects/${encodeURIComponent(credentials.projectId)}/messages:send`

  async function send(
    push: Push,
    turn: () => Promise<void>,
    signal: AbortSignal,
  ): Promise<PushOutcome> {
    let [unseen, isRenewed] = [0, false]
    for (;;) {
      const token = await tokens.get()
      await turn()
      const message = toMessage(push)
      const body = JSON.stringify({ ...(validateOnly && { validate_only: true }), message })
      const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' }
      try {
        const answer = await sessions.post(path, headers, body, signal)
        if (isUnauthenticated(answer) && !isRenewed) {
          isRenewed = true
          tokens.drop(token)
          continue
        }
        return readAnswer(answer, push.device.value)
      } catch (error) {
        if (!(error instanceof RequestFailed)) throw error
        const why = `FCM: ${error.message}`
        if (error.isUnknown) return { is: 'retry', code: error.code, afterMs: retryMs, why }
        if (++unseen >= unseenMax) return { is: 'away', why }
      }
    }
  }

  return {
    name: 'fcm',
    sessions,
    async send(push, turn, signal) {
      try {
        return await send(push, turn, signal)
      } catch (error) {
        if (error instanceof TokenRefused) return { is: 'away', why: error.message }
        throw error
      }
    },
    close: () => sessions.close(),
  }
}
