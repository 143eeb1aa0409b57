// What every API request passes through, in this order (SPEC 5): authenticate → key syntax (both before the body is
// read) → replay → limits → validate → run. A key's lock is freed on every way out, also when the client has gone: once
// begun, a request runs to its end whether or not anyone still listens.

import { hash } from 'node:crypto'
import canonicalize from 'canonicalize'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Receipt } from '../../db/receipts.ts'
import { AppError, type ErrorCode } from '../../domain/errors.ts'
import {
  type Begun,
  type IdempotencyStore,
  isStored,
  lockSeconds,
  parseKey,
  type StoredResponse,
} from '../../domain/idempotency.ts'
import type { Limit, RateLimiter } from '../../domain/limits.ts'
import type { Authenticate, Caller } from '../auth.ts'
import type { Span } from '../trace.ts'
import { fieldErrors, invalid } from '../validation.ts'
import type { Command } from './commands.ts'
import type { HttpConfig } from './config.ts'

/** Who may call a route. `self`: the user named in the path, or an internal program; `any`: whoever is known. */
export type Access = 'open' | 'any' | 'user' | 'internal' | 'self'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** None: open. */
    access?: Access
    /** A write of the public API: it needs an Idempotency-Key. */
    keyed?: boolean
    /** What a malformed id in the path is answered with. */
    notFound?: ErrorCode
    /** The text of the body is kept, as whoever signed it sent it. */
    keepsText?: boolean
    /** Codes the route may answer with besides the general ones; for the OpenAPI page. */
    problems?: readonly ErrorCode[]
  }
  interface FastifyRequest {
    /** Undefined on open routes. */
    caller: Caller
    /** The Idempotency-Key of a keyed route. */
    key: string
    /** Of the body, where the route keeps it. */
    text: string | undefined
    /** Its piece of the trace it belongs to, if any. */
    span: Span
    /** Why the body is not JSON, and the text it was. */
    unparsed: { error: AppError; text: string } | undefined
  }
}

export type Run = (command: Command, receipt: Receipt) => Promise<StoredResponse>

export type GuardParts = {
  auth: Authenticate
  idempotency: IdempotencyStore
  limits: RateLimiter
  config: Pick<HttpConfig, 'RATE_LIMIT_USER_PER_MINUTE' | 'RATE_LIMIT_GLOBAL_PER_MINUTE'>
  run: Run
  /** Makes a durable job of the command and answers 202. */
  runLater(
    command: Command,
    receipt: Receipt & { kind: 'key' },
    request: FastifyRequest,
  ): Promise<StoredResponse>
  /** For tests: monotonic ms. */
  nowMs?: () => number
}

export type Guard = ReturnType<typeof createGuard>

type Handler = (request: FastifyRequest, reply: FastifyReply) => Promise<FastifyReply>

export function createGuard(parts: GuardParts) {
  const { auth, idempotency, run, runLater, nowMs = () => performance.now() } = parts

  /** Before the body: who calls, may they, is the key well formed. */
  async function admit(request: FastifyRequest): Promise<void> {
    const { access = 'open', keyed } = request.routeOptions.config
    if (access !== 'open') {
      const caller = auth.caller(request.headers)
      request.caller = caller instanceof Promise ? await caller : caller
      checkAccess(access, request)
    }
    if (keyed) request.key = readKey(request.headers['idempotency-key'])
  }

  /** A read: limits, validation, then `answer`. */
  function read(answer: (request: FastifyRequest) => Promise<StoredResponse>): Handler {
    return async (request, reply) => {
      await charge(request, reply, false)
      checkValid(request)
      return send(reply, await answer(request))
    }
  }

  /** A write: replayed, or run once under its key. */
  function write(toCommand: (request: FastifyRequest) => Command): Handler {
    return async (request, reply) => {
      const { key } = request
      const fingerprint = fingerprintOf(request)
      const sinceMs = nowMs()
      const begun = await idempotency.begin(key, fingerprint)
      if (begun.is === 'done') {
        reply.header('idempotent-replayed', 'true')
        return send(reply, begun.response)
      }
      if (begun.is !== 'mine') throw refusal(begun)
      let response: StoredResponse
      try {
        await charge(request, reply, true)
        checkValid(request)
        const { traceparent } = request.span
        const command = { ...toCommand(request), ...(traceparent && { traceparent }) }
        if (nowMs() - sinceMs >= lockSeconds * 1000) throw lateness()
        const receipt = { kind: 'key', key, fingerprint } as const
        response = wantsAsync(request)
          ? await runLater(command, receipt, request)
          : await run(command, receipt)
      } catch (error) {
        await settle(request, () => idempotency.release(key, begun.token))
        throw error
      }
      await settle(request, () =>
        isStored(response.status)
          ? idempotency.finish(key, fingerprint, begun.token, response)
          : idempotency.release(key, begun.token),
      )
      return send(reply, response)
    }
  }

  const userLimit = parts.config.RATE_LIMIT_USER_PER_MINUTE
  const globalLimit = { subject: 'global', perMinute: parts.config.RATE_LIMIT_GLOBAL_PER_MINUTE }

  /** The user first: one who asks too often must not use up what all share. */
  async function charge(request: FastifyRequest, reply: FastifyReply, isWrite: boolean) {
    const userId = request.caller?.userId
    if (isWrite && userId !== undefined && userLimit > 0) {
      await take(reply, 'user', { subject: `user:${userId}`, perMinute: userLimit })
    }
    if (globalLimit.perMinute > 0) await take(reply, 'global', globalLimit)
  }

  /** Says what is left of the tightest limit (draft-ietf-httpapi-ratelimit-headers-10). */
  async function take(reply: FastifyReply, name: 'user' | 'global', limit: Limit): Promise<void> {
    const { granted, remaining, retryAfterMs } = await parts.limits.take(limit)
    if (granted && name === 'global') return
    reply.header('ratelimit-policy', `"${name}";q=${limit.perMinute};w=60`)
    const waitSeconds = Math.max(1, Math.ceil(retryAfterMs / 1000))
    reply.header('ratelimit', `"${name}";r=${remaining}${granted ? '' : `;t=${waitSeconds}`}`)
    if (granted) return
    const whose = name === 'user' ? 'you made' : 'everybody together made'
    throw new AppError('RATE_LIMITED', `${whose} more than ${limit.perMinute} requests a minute`, {
      retryAfterMs: waitSeconds * 1000,
    })
  }

  return { admit, read, write }
}

/** The answer as it was stored: not one byte is made anew. */
export function send(reply: FastifyReply, { status, headers, body }: StoredResponse): FastifyReply {
  return reply.code(status).headers(headers).send(body)
}

function checkAccess(access: Access, { caller, params }: FastifyRequest): void {
  const { userId, internal } = caller
  if (access === 'user') {
    if (userId === undefined) throw unauthenticated('this needs a user')
    return
  }
  if (internal) return
  if (userId === undefined) throw unauthenticated('this needs X-Internal-Auth or a user')
  if (access === 'any' || (access === 'self' && userId === (params as { id: string }).id)) return
  const whose = access === 'self' ? 'another user’s' : 'for internal programs, by X-Internal-Auth'
  throw new AppError('FORBIDDEN', `this is ${whose}`)
}

const unauthenticated = (text: string) => new AppError('UNAUTHENTICATED', text)

function readKey(header: string | string[] | undefined): string {
  if (header === undefined || header === '') {
    const text = 'send an Idempotency-Key header: a new UUID v4, lower case, without hyphens'
    throw new AppError('IDEMPOTENCY_KEY_MISSING', text)
  }
  const key = typeof header === 'string' ? parseKey(header) : undefined
  if (key !== undefined) return key
  const text =
    'Idempotency-Key must be a UUID v4, lower case, without hyphens, such as a0eebc999c0b4ef8bb6d6bb9bd380a11'
  throw new AppError('IDEMPOTENCY_KEY_INVALID', text)
}

/** Method, path, caller and body; JSON in its canonical form (RFC 8785), so that spacing and key order are free. */
function fingerprintOf(request: FastifyRequest): string {
  const { caller, unparsed } = request
  const body = unparsed ? unparsed.text : canonical(request.body)
  const who = caller.userId === undefined ? 'internal' : `user ${caller.userId}`
  return hash('sha256', `${request.method}\n${request.url}\n${who}\n${body}`)
}

/** Half a surrogate pair has no canonical form; validation refuses it afterwards. */
function canonical(body: unknown): string {
  try {
    return canonicalize(body) ?? ''
  } catch {
    return JSON.stringify(body)
  }
}

function refusal(begun: Exclude<Begun, { is: 'mine' } | { is: 'done' }>): AppError {
  return begun.is === 'running'
    ? new AppError('IDEMPOTENCY_KEY_IN_USE', 'a request with this key is being processed now', {
        retryAfterMs: begun.retryAfterMs,
      })
    : new AppError(
        'IDEMPOTENCY_KEY_REUSED',
        'this key was used with another method, path, user or body: make a new key for a new request',
      )
}

function checkValid(request: FastifyRequest): void {
  if (request.unparsed) throw request.unparsed.error
  const error = request.validationError
  if (error === undefined) return
  const { notFound } = request.routeOptions.config
  if (error.validationContext === 'params' && notFound) {
    const { id } = request.params as { id: string }
    throw new AppError(notFound, `there is nothing with the id ${JSON.stringify(id.slice(0, 80))}`)
  }
  throw invalid(fieldErrors(error.validation ?? []))
}

const lateness = () =>
  new AppError('OVERLOADED', 'the request waited too long to be started', { retryAfterMs: 1000 })

/** RFC 7240: preferences are a comma list, parameters follow a semicolon. */
const respondAsync = /(^|,)\s*respond-async\s*(;|,|$)/i

function wantsAsync({ headers }: FastifyRequest): boolean {
  const { prefer } = headers
  return prefer !== undefined && respondAsync.test(String(prefer))
}

/** The command is decided: a store that fails now costs speed, never the answer. */
async function settle(request: FastifyRequest, act: () => Promise<void>): Promise<void> {
  try {
    await act()
  } catch (error) {
    request.log.warn({ err: error }, 'the idempotency lock was left to run out')
  }
}
