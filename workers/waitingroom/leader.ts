// Leads matches: lets people in at their rate, ends windows that are over, drops places nobody comes back to, and has
// those told who are near the front and not connected. For each match one process does so at a time; the others ask
// again and again, and take over when it has been silent for two seconds. Nothing here is lost with its process: the
// bucket of the rate begins empty, the rest is read from the store and from Postgres.

import { countEnds, noteFreed, readEndedTurns, settleTurns, tellNear } from '../../db/queueTurns.ts'
import type { Db } from '../../db/schema.ts'
import { noteLastSeat, readRoom } from '../../db/waitingRooms.ts'
import { type Bucket, fill, noShowRate, releasePerMinute } from '../../domain/admission.ts'
import type { QueueStore } from '../../domain/waitingroom.ts'
import type { Log } from '../log.ts'
import type { Pass } from '../loop.ts'
import { finishDraw } from './control.ts'
import type { WaitingroomMetrics } from './metrics.ts'
import type { Room } from './room.ts'
import type { Rooms } from './rooms.ts'

export type LeaderOptions = {
  db: Db
  store: QueueStore
  rooms: Rooms
  log: Log
  metrics: WaitingroomMetrics
  /** Of this process, unlike any other's. */
  id: string
  persistenceSeconds: number
  nowMs?: () => number
}

export type Leader = {
  /** A step of every match, ten times a second. */
  admissionPass: Pass
  /** What can wait for a second. */
  upkeepPass: Pass
  leads(matchId: string): boolean
}

/** Of one match that this process leads, or would lead. */
type Lead = {
  mine: boolean
  bucket: Bucket
  admitAt: number
  askAt: number
  noShow: number
  /** How many were let in, by time, for two minutes. */
  recent: { atMs: number; count: number }[]
  failing: boolean
  /** Since when the store has answered, and this process led. */
  steadySince: number
  /** When this loss of the store's was first seen here: its time is of another clock, which may be wrong. */
  lossSeen: { revivedAtMs: number; at: number }
  upkeepTurn: number
  drawingSince: number | undefined
}

/** People are let in together once a second: each time everybody in front moves, and is told. */
const admitEveryMs = 1000
/** How often a process asks whether a match has lost its leader. */
const askEveryMs = 500
/** After the store lost a match, until the places of those who are connected are back. */
const recoveryMs = 10_000
/** Until those who are connected were noted as alive again: their places must not go for a store that was away. */
const dropAfterMs = 60_000
const paceMs = 120_000
/** Another process may still be at the draw. */
const drawMaxMs = 5000
/** Who is told, when not connected, that their turn comes near. */
const nearFront = 500
const quietSeconds = 90

export function createLeader(options: LeaderOptions): Leader {
  const { db, store, rooms, log, metrics, id, persistenceSeconds } = options
  const nowMs = options.nowMs ?? (() => performance.now())
  const leads = new Map<string, Lead>()

  function leadOf(matchId: string): Lead {
    const known = leads.get(matchId)
    if (known !== undefined) return known
    const lead: Lead = {
      mine: false,
      bucket: { credit: 0, atMs: nowMs() },
      admitAt: 0,
      askAt: 0,
      noShow: 0,
      recent: [],
      failing: false,
      steadySince: nowMs(),
      lossSeen: { revivedAtMs: 0, at: 0 },
      upkeepTurn: 0,
      drawingSince: undefined,
    }
    leads.set(matchId, lead)
    return lead
  }

  /** How many are due now; none while what was decided before is not durable yet. */
  function due(room: Room, lead: Lead, now: number): number {
    const { ratePerMinute, phase, status, revivedAtMs } = room.state
    const perMinute = releasePerMinute(ratePerMinute, lead.noShow)
    const runs = phase === 'open' && status === 'active'
    if (lead.lossSeen.revivedAtMs !== revivedAtMs) lead.lossSeen = { revivedAtMs, at: now }
    const recovers = Math.max(Date.now() - revivedAtMs, now - lead.lossSeen.at) < recoveryMs
    if (!runs || recovers) {
      lead.bucket = { credit: 0, atMs: now }
      return 0
    }
    lead.bucket = fill(lead.bucket, perMinute, now, admitEveryMs)
    if (lead.failing || now < lead.admitAt) return 0
    return Math.floor(lead.bucket.credit)
  }

  async function step(room: Room): Promise<void> {
    const now = nowMs()
    const lead = leadOf(room.matchId)
    if (!lead.mine && now < lead.askAt) return
    lead.askAt = now + askEveryMs
    const want = lead.mine ? due(room, lead, now) : 0
    let led: Awaited<ReturnType<QueueStore['admit']>>
    try {
      led = await store.admit(room.matchId, { leader: id, want })
      lead.failing = false
    } catch (error) {
      lead.failing = true
      lead.steadySince = nowMs()
      throw error
    }
    if (led.is === 'other') {
      if (lead.mine) log.info({ match_id: room.matchId }, 'another process leads the match')
      lead.mine = false
      return
    }
    if (!lead.mine) {
      log.info({ match_id: room.matchId }, 'leads the match')
      Object.assign(lead, {
        mine: true,
        bucket: { credit: 0, atMs: now },
        recent: [],
        steadySince: now,
        upkeepTurn: 0,
      })
    }
    if (led.admitted === 0) return
    lead.bucket.credit -= led.admitted
    // More were due than one step takes: the next goes on.
    if (lead.bucket.credit < 1) lead.admitAt = now + admitEveryMs
    lead.recent.push({ atMs: now, count: led.admitted })
    metrics.admitted(led.admitted)
  }

  const pace = (lead: Lead): number => {
    const since = nowMs() - paceMs
    while (lead.recent[0] !== undefined && lead.recent[0].atMs < since) lead.recent.shift()
    const first = lead.recent[0]
    if (first === undefined) return 0
    const count = lead.recent.reduce((sum, one) => sum + one.count, 0)
    const minutes = Math.max(nowMs() - first.atMs, 30_000) / 60_000
    return Math.max(1, Math.round(count / minutes))
  }

  async function upkeep(room: Room): Promise<number> {
    const { matchId, state } = room
    const lead = leadOf(matchId)
    if (!lead.mine) return 0
    await settleTurns(db, matchId)
    const ended = await readEndedTurns(db, matchId)
    if (ended.length > 0) {
      await store.free(matchId, ended)
      await noteFreed(
        db,
        matchId,
        ended.map((window) => window.seat),
      )
    }
    await noteLastSeat(db, matchId, room.lastSeat)
    if (state.phase === 'drawing' && state.status !== 'closed') await takeUpDraw(room, lead)
    else lead.drawingSince = undefined
    if (state.status !== 'closed') {
      if (lead.upkeepTurn % 5 === 0) await every5s(room, lead)
      if (lead.upkeepTurn % 10 === 0) await tellQuiet(room)
    }
    lead.upkeepTurn++
    return ended.length
  }

  async function takeUpDraw(room: Room, lead: Lead): Promise<void> {
    lead.drawingSince ??= nowMs()
    if (nowMs() - lead.drawingSince < drawMaxMs) return
    log.warn({ match_id: room.matchId }, 'finishes a draw that somebody left')
    await finishDraw({ db, store }, room.matchId)
  }

  async function every5s(room: Room, lead: Lead): Promise<void> {
    await agree(room)
    const steadyMs = nowMs() - lead.steadySince
    const dropped = steadyMs < dropAfterMs ? 0 : await store.drop(room.matchId, persistenceSeconds)
    if (dropped > 0) log.info({ match_id: room.matchId, dropped }, 'dropped abandoned places')
    const { used, unused } = await countEnds(db, room.matchId)
    lead.noShow = noShowRate(used, unused)
    const before = room.state.pacePerMinute
    const now = pace(lead)
    if (Math.abs(now - before) > before / 10) {
      await store.control(room.matchId, { pacePerMinute: now })
    }
  }

  /** What an operator said while the store was away stands in Postgres alone. The store is looked at first, as it is told last. */
  async function agree(room: Room): Promise<void> {
    await room.sync()
    const { status, ratePerMinute, capacity } = room.state
    const said = await readRoom(db, room.matchId)
    if (said === undefined) return
    const isSame =
      said.status === status && said.ratePerMinute === ratePerMinute && said.capacity === capacity
    if (isSame) return
    log.warn({ match_id: room.matchId, status: said.status }, 'tells the store what it missed')
    await store.control(room.matchId, {
      status: said.status,
      ratePerMinute: said.ratePerMinute,
      capacity: said.capacity,
      ...(said.reason !== undefined && { reason: said.reason }),
    })
  }

  async function tellQuiet(room: Room): Promise<void> {
    const { matchId, state } = room
    if (state.phase !== 'open' || state.status !== 'active') return
    const quiet = await store.quiet(matchId, nearFront, quietSeconds)
    const near = quiet.flatMap((one) => {
      const minutes = room.estimate(one.position)
      return minutes === null ? [] : [{ ...one, minutes }]
    })
    if (near.length === 0) return
    await tellNear(db, matchId, near)
    await store.noteTold(
      matchId,
      near.map((one) => one.seat),
    )
  }

  /** Every match gets its step, whatever becomes of the others. @throws what went wrong first */
  async function each<T>(work: (room: Room) => Promise<T>): Promise<T[]> {
    const results = await Promise.allSettled([...rooms.all()].map(work))
    const failed = results.find((result) => result.status === 'rejected')
    if (failed) throw failed.reason
    return results.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []))
  }

  let away = false
  return {
    // Its failures end here: the loop's growing waits would keep the line waiting long after the store is back.
    async admissionPass() {
      try {
        await each(step)
        if (away) log.info('lets people in again')
        away = false
        return 0
      } catch (error) {
        if (!away) log.warn({ err: error }, 'cannot let people in now: tries again')
        away = true
        return { waitMs: askEveryMs }
      }
    },

    async upkeepPass() {
      await each(upkeep)
      return 0
    },

    leads: (matchId) => leads.get(matchId)?.mine === true,
  }
}
