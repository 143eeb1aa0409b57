// Queue tokens: what gives a person back a place after any interruption, on any process, without a look into a store.
// A token names match, user, seat, time of joining and epoch, ends after a day, and is signed (HMAC-SHA256); who changes
// one bit has none. It proves a place, never a turn: whether one may buy is in Postgres alone.

import { createHmac, timingSafeEqual } from 'node:crypto'
import { AppError } from '../../domain/errors.ts'
import type { Ticket } from '../../domain/waitingroom.ts'

export type QueueTicket = Ticket & { matchId: string; userId: string }

export type Tokens = {
  sign(ticket: QueueTicket): string
  /** @throws AppError QUEUE_TOKEN_INVALID */
  verify(token: string): QueueTicket
}

const lifeSeconds = 86_400
const version = 1
/** A user id of 255 characters makes one of about 600. */
const lengthMax = 1000
const form = /^([\w-]+)\.([\w-]{43})$/

type Claims = [number, string, string, number, number, number, number]

export function createTokens(secret: string, nowMs: () => number = Date.now): Tokens {
  // What else the secret signs must not pass for a token.
  const signatureOf = (claims: string) =>
    createHmac('sha256', secret).update(`queue.${claims}`).digest()

  return {
    sign({ matchId, userId, seat, joinedUs, epoch }) {
      const endsAt = Math.floor(nowMs() / 1000) + lifeSeconds
      const claims: Claims = [version, matchId, userId, seat, joinedUs, epoch, endsAt]
      const text = Buffer.from(JSON.stringify(claims)).toString('base64url')
      return `${text}.${signatureOf(text).toString('base64url')}`
    },

    verify(token) {
      const [, text = '', signature = ''] = (token.length <= lengthMax && form.exec(token)) || []
      const given = Buffer.from(signature, 'base64url')
      const right = signatureOf(text)
      if (text === '' || given.length !== right.length || !timingSafeEqual(given, right)) {
        throw invalid('is not one of ours')
      }
      const claims = JSON.parse(Buffer.from(text, 'base64url').toString()) as Claims
      const [made, matchId, userId, seat, joinedUs, epoch, endsAt] = claims
      if (made !== version) throw invalid('is of another version')
      if (endsAt * 1000 <= nowMs()) throw invalid('has expired')
      return { matchId, userId, seat, joinedUs, epoch }
    },
  }
}

const invalid = (why: string) =>
  new AppError('QUEUE_TOKEN_INVALID', `the queue token ${why}: join the queue again`)
