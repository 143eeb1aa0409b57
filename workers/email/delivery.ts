// The way of one mail to one provider, once. Written down as handed over before it is sent (db/emailSends.ts); whatever
// may have reached a provider is asked for there before it is sent again, anywhere, and no mail goes to a second provider
// while that is open. What is only not known yet waits, and spends no attempt.

import type { EmailSends, Settlement } from '../../db/emailSends.ts'
import { normalAddress } from '../../domain/emails.ts'
import { untilSaid } from '../acks.ts'
import { Postpone, RetryAfter, Unrecoverable } from '../failures.ts'
import type { Pace } from '../pace.ts'
import type { EmailProvider, Found, Mail, SendOutcome } from './provider.ts'
import type { Providers, Route } from './providers.ts'

export type DeliveryOptions = {
  sends: EmailSends
  providers: Providers
  /** Of mails, over all instances. */
  pace: Pace
  /** Of questions what became of a mail. */
  askPace: Pace
  /** What is taken becomes visible to questions late: what is not found for so long is not there. */
  absentAfterMs: number
  /** What becomes of a mail that a provider may have and that cannot be asked about. */
  unaskable: 'give-up' | 'resend'
  /** Begin nothing new. */
  stopping: AbortSignal
  onRequest?(provider: string, outcome: SendOutcome['is'], seconds: number): void
  onAsked?(provider: string, answer: Found['is']): void
}

export type Delivered = { as: 'sent' | 'found'; provider: string } | { as: 'suppressed' }

/** Hand-overs in all: as many as a job has attempts. */
const handsMax = 3
/** A mail that was noted later than this after its slot needs another: a slow database would let them go in a heap. */
const lateMs = 500
/** A worker that slept longer than this after its note does not send: another may be asking by now. */
const staleMs = 20_000
/** Who cannot be asked today has the mail, or it is too old to be of use. */
const askMaxMs = 24 * 3_600_000
const askAgainMs = { first: 15_000, most: 60_000 }

export function createDelivery(options: DeliveryOptions) {
  const { sends, providers, pace, askPace, absentAfterMs, unaskable, stopping } = options

  /** @throws Postpone, RetryAfter, Unrecoverable */
  async function deliver(mail: Mail, last: boolean, signal: AbortSignal): Promise<Delivered> {
    // Before it is noted: of a worker that dies only what it was sending has to be asked for.
    await turn(signal)
    const route = providers.next()
    if (route === undefined) throw away()
    const { provider } = route
    const notedAt = performance.now()
    const address = normalAddress(mail.to)
    const begun = await sends.begin({ jobId: mail.id, provider: provider.name, address })
    switch (begun.is) {
      case 'suppressed':
        return { as: 'suppressed' }
      case 'taken':
        throw new Postpone(1000 + jitter(1000), 'the same mail is being sent by another job')
      case 'fresh':
        return await send({ mail, last, signal, hands: begun.hands }, route, notedAt)
    }
    if (begun.state === 'sent') return { as: 'found', provider: begun.provider }
    const found = await ask(mail, begun, signal)
    if (found !== 'absent') return found
    if (begun.hands >= handsMax) {
      await settle(mail, begun.hands, 'given_up', signal)
      throw new Unrecoverable(`handed over ${begun.hands} times, and each time lost on the way`)
    }
    await turn(signal)
    const againAt = performance.now()
    const hands = await sends.again(mail.id, provider.name, begun.hands)
    if (hands === undefined) throw new Postpone(1000 + jitter(1000), 'another worker sends it')
    return await send({ mail, last, signal, hands }, route, againAt)
  }

  /** What became of it is known: told until it is heard, or the mail would be asked for, or given up, without need. */
  const settle = (
    { id: jobId }: Mail,
    hands: number,
    as: Settlement['as'],
    signal: AbortSignal,
  ): Promise<void> => untilSaid(signal, () => sends.settle({ jobId, hands, as }))

  /** The mail is noted as handed over to the route's provider. */
  async function send(one: One, first: Route, firstNotedAt: number): Promise<Delivered> {
    const { mail, last, signal } = one
    const tried = new Set<EmailProvider>()
    let [route, notedAt, hands] = [first, firstNotedAt, one.hands]
    let turnAt = notedAt
    for (;;) {
      const mayGo = await untilSaid(signal, () => providers.admits(route))
      const outcome = mayGo
        ? await request({ ...one, hands }, route, { notedAt, turnAt })
        : notAdmitted
      if (outcome.is === 'sent') {
        await Promise.all([
          settle(mail, hands, 'sent', signal),
          untilSaid(signal, () => providers.worked(route)),
        ])
        return { as: 'sent', provider: route.provider.name }
      }
      // What we broke off ourselves says nothing of the provider.
      if (!signal.aborted) await untilSaid(signal, () => tell(route, outcome))
      if (outcome.is === 'unknown') throw open(outcome.why, last)
      const passesOn = outcome.is === 'down' || (outcome.is === 'retry' && outcome.limits)
      tried.add(route.provider)
      const next = passesOn ? providers.next(tried) : undefined
      if (next === undefined) {
        await settle(mail, hands, 'withdrawn', signal)
        throw refused(outcome, route)
      }
      const again = await untilSaid(signal, () => sends.again(mail.id, next.provider.name, hands))
      if (again === undefined) throw new Postpone(1000, 'another worker sends it')
      ;[route, notedAt, hands] = [next, performance.now(), again]
      turnAt = Number.NEGATIVE_INFINITY
    }
  }

  /** @throws Postpone when there is none */
  async function turn(signal: AbortSignal): Promise<void> {
    try {
      await pace.next(AbortSignal.any([stopping, signal]))
    } catch (error) {
      if (stopping.aborted || signal.aborted) throw new Postpone(0, 'the worker stops')
      throw new Postpone(1000 + jitter(1000), (error as Error).message)
    }
  }

  async function request(
    { mail, signal, hands }: One,
    { provider }: Route,
    { notedAt, turnAt }: { notedAt: number; turnAt: number },
  ): Promise<SendOutcome> {
    try {
      if (performance.now() - turnAt > lateMs) await turn(signal)
      if (stopping.aborted || signal.aborted) throw new Postpone(0, 'the worker stops')
      if (performance.now() - notedAt > staleMs) throw new Postpone(1000, 'it took too long')
    } catch (error) {
      await settle(mail, hands, 'withdrawn', signal)
      throw error
    }
    const begunAt = performance.now()
    const outcome = await provider.send(mail, signal)
    options.onRequest?.(provider.name, outcome.is, (performance.now() - begunAt) / 1000)
    return outcome
  }

  async function tell(route: Route, outcome: SendOutcome): Promise<void> {
    if (outcome === notAdmitted) return
    if (outcome.is === 'down' || outcome.is === 'unknown') {
      return await providers.failed(route, outcome.why)
    }
    if (outcome.is === 'retry' && outcome.limits) {
      return await providers.limited(route, outcome.why, outcome.afterMs)
    }
    // It answered: what it said of this mail is the mail's affair.
    await providers.worked(route)
  }

  const away = () =>
    new Postpone(providers.awayMs() + 500 + jitter(2000), 'no mail provider is there')

  function refused(
    outcome: Exclude<SendOutcome, { is: 'sent' | 'unknown' }>,
    { isProbe }: Route,
  ): Error {
    if (outcome.is === 'rejected') return new Unrecoverable(outcome.why)
    // Whoever tries out for the others, while all are refused, spends none: it would end as a dead letter.
    const isOnlyTrying = outcome.is === 'retry' && outcome.limits && isProbe
    if (outcome.is === 'retry' && !isOnlyTrying) return new RetryAfter(outcome.afterMs, outcome.why)
    return new Postpone(providers.awayMs() + 500 + jitter(2000), outcome.why)
  }

  /** An earlier hand-over: is it there? */
  async function ask(
    mail: Mail,
    earlier: { provider: string; ageMs: number; hands: number },
    signal: AbortSignal,
  ): Promise<Delivered | 'absent'> {
    const { provider: name, ageMs, hands } = earlier
    const provider = providers.named(name)
    if (provider?.find === undefined) {
      if (unaskable === 'resend') return 'absent'
      await settle(mail, hands, 'given_up', signal)
      throw new Unrecoverable(
        `${name} may have it already and cannot be asked: \`jobs failed:retry\` sends it (again)`,
      )
    }
    await askPace.next(AbortSignal.any([stopping, signal])).catch(() => {
      throw new Postpone(0, 'the worker stops')
    })
    const found = await provider.find(mail, ageMs, signal)
    options.onAsked?.(name, found.is)
    if (found.is === 'there') {
      await settle(mail, hands, 'sent', signal)
      return { as: 'found', provider: name }
    }
    if (found.is === 'rejected') {
      await settle(mail, hands, 'withdrawn', signal)
      throw new Unrecoverable(found.why)
    }
    const waited = ageMs >= absentAfterMs
    if (found.is === 'absent' && (waited || found.isCertain)) return 'absent'
    if (ageMs > askMaxMs) {
      await settle(mail, hands, 'given_up', signal)
      const why = found.is === 'cannot' ? found.why : 'it does not say'
      throw new Unrecoverable(`whether ${name} has it could not be found out in a day: ${why}`)
    }
    const leftMs = found.is === 'absent' ? absentAfterMs - ageMs : askAgainMs.most
    const waitMs = Math.min(askAgainMs.most, Math.max(askAgainMs.first, leftMs))
    throw new Postpone(waitMs + jitter(1000), `${name} may have it: asked again later`)
  }

  return { deliver }
}

type One = { mail: Mail; last: boolean; signal: AbortSignal; hands: number }

/** Somebody else tries whether the provider is back. */
const notAdmitted: SendOutcome = { is: 'down', why: 'no mail provider is there' }

const jitter = (ms: number): number => Math.random() * ms

/** The last attempt of a job whose outcome is open must not bury it: it runs once more, to ask. */
const open = (why: string, last: boolean): Error =>
  last ? new Postpone(askAgainMs.first * 2, why) : new RetryAfter(0, why)
