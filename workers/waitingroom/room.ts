// One match as this process knows it: the line of live places, kept up by the store's steps, the open windows, and who
// of the people is connected here. It answers where a seat stands without asking anybody, and tells its listener what
// has changed for whom. It sends nothing itself.

import { estimateMinutes } from '../../domain/admission.ts'
import { seatsOf } from '../../domain/draw.ts'
import { Line } from '../../domain/line.ts'
import type {
  Delta,
  PurchaseWindow,
  QueueState,
  QueueStore,
  Snapshot,
  WindowEnd,
} from '../../domain/waitingroom.ts'
import type { Client } from './client.ts'
import { drawFromSeed } from './lot.ts'

export type RoomListener = {
  /** A turn was given, and is durable. */
  onTurn(room: Room, window: PurchaseWindow, atMs: number): void
  onWindowOver(room: Room, seat: number, reason: WindowEnd): void
  onState(room: Room, before: QueueState, atMs: number): void
  /** Places moved, from this one on. */
  onMoved(room: Room, fromPlace: number, atMs: number): void
  /** The store had lost the match, or this process had lost track: everything may be different. */
  onReload(room: Room, before: QueueState): void
}

export class Room {
  readonly matchId: string
  state: QueueState
  line = new Line()
  /** By seat. */
  windows = new Map<number, PurchaseWindow>()
  /** Seats that were on their way out of the line, to be let in, when this process began. */
  called = new Set<number>()
  /** Seats that the store lost, and that are being given back. */
  readonly restoring = new Set<number>()
  /** The connections of this process, by seat, the newest first. */
  clients = new Map<number, Client>()
  /** Of the last step applied. */
  n = 0
  lastSeat = 0
  usedAt = performance.now()
  private places: Uint32Array | undefined
  private seats: Uint32Array | undefined
  private readonly store: QueueStore
  private readonly listener: RoomListener
  private syncing: Promise<void> | undefined
  private again = false

  constructor(matchId: string, snapshot: Snapshot, store: QueueStore, listener: RoomListener) {
    this.matchId = matchId
    this.store = store
    this.listener = listener
    this.state = snapshot.state
    this.load(snapshot)
  }

  /** Where a seat stands in the line. */
  placeOf(seat: number): number {
    return this.places !== undefined && seat <= this.places.length ? this.places[seat - 1]! : seat
  }

  seatAt(place: number): number {
    return this.seats !== undefined && place <= this.seats.length ? this.seats[place - 1]! : place
  }

  /** What the store orders by, for a place it has lost. */
  scoreOf(seat: number, joinedUs: number): number {
    return this.places !== undefined && seat <= this.places.length
      ? this.state.drawnBaseUs + this.placeOf(seat)
      : joinedUs
  }

  /** From 1; 0: not in line, as those are whose turn has come. Who has just joined stands behind all that are known. */
  position(seat: number): number {
    const place = this.placeOf(seat)
    if (this.line.has(place)) return this.line.rank(place)
    return seat > this.lastSeat ? this.line.size + seat - this.lastSeat : 0
  }

  estimate(position: number): number | null {
    const { ratePerMinute, pacePerMinute } = this.state
    return estimateMinutes(position, ratePerMinute, pacePerMinute)
  }

  /** Applies what the store has noted since. Calls that come meanwhile are one more round. */
  sync(): Promise<void> {
    if (this.syncing !== undefined) {
      this.again = true
      return this.syncing
    }
    this.syncing = this.catchUp().finally(() => {
      this.syncing = undefined
    })
    return this.syncing
  }

  private async catchUp(): Promise<void> {
    do {
      this.again = false
      const deltas = await this.store.changes(this.matchId, this.n)
      if (deltas === undefined) await this.reload()
      else if (deltas.length > 0) {
        this.again = true
        this.apply(deltas)
      }
    } while (this.again)
  }

  private async reload(): Promise<void> {
    const before = this.state
    this.load(await this.store.snapshot(this.matchId))
    this.listener.onReload(this, before)
  }

  private load({ n, lastSeat, seats, called, windows, state }: Snapshot): void {
    this.n = n
    this.lastSeat = lastSeat
    this.takeState(state)
    this.line = new Line()
    for (const seat of seats) this.line.add(this.placeOf(seat))
    this.called = new Set(called)
    this.windows = new Map(windows.map((window) => [window.seat, window]))
  }

  /** The draw is done again here from its seed, once. */
  private takeState(state: QueueState): void {
    this.state = state
    const drawn = state.phase === 'open' && state.seed !== undefined && state.lobbySize > 0
    if (!drawn) {
      this.places = undefined
      this.seats = undefined
    } else if (this.places?.length !== state.lobbySize) {
      this.places = drawFromSeed(state.seed!, state.lobbySize)
      this.seats = seatsOf(this.places)
    }
  }

  private apply(deltas: readonly Delta[]): void {
    let moved = Number.POSITIVE_INFINITY
    let movedAtMs = 0
    for (const delta of deltas) {
      this.n = delta.n
      const lowest = this.applyPlaces(delta)
      if (lowest < Number.POSITIVE_INFINITY) movedAtMs ||= delta.atMs
      moved = Math.min(moved, lowest)
      for (const window of delta.granted) {
        this.called.delete(window.seat)
        this.windows.set(window.seat, window)
        this.listener.onTurn(this, window, delta.atMs)
      }
      for (const { seat, reason } of delta.over) {
        this.called.delete(seat)
        this.windows.delete(seat)
        this.listener.onWindowOver(this, seat, reason)
      }
      if (delta.state) this.applyState(delta.state, delta.atMs)
    }
    if (moved < Number.POSITIVE_INFINITY) this.listener.onMoved(this, moved, movedAtMs)
  }

  /** @returns the first place from which on positions are others */
  private applyPlaces({ lastSeat, left, back }: Delta): number {
    let lowest = Number.POSITIVE_INFINITY
    // New seats are live until they are said to have been left.
    for (; this.lastSeat < lastSeat; this.lastSeat++) {
      this.line.add(this.placeOf(this.lastSeat + 1))
    }
    for (const seat of back) {
      const place = this.placeOf(seat)
      if (this.line.add(place)) lowest = Math.min(lowest, place)
    }
    for (const seat of left) {
      const place = this.placeOf(seat)
      if (this.line.remove(place)) lowest = Math.min(lowest, place)
    }
    return lowest
  }

  private applyState(state: QueueState, atMs: number): void {
    const before = this.state
    const live = before.phase !== 'open' && state.phase === 'open' ? this.liveSeats() : undefined
    this.takeState(state)
    if (live !== undefined) {
      this.line = new Line()
      for (const seat of live) this.line.add(this.placeOf(seat))
    }
    this.listener.onState(this, before, atMs)
  }

  private liveSeats(): number[] {
    const seats: number[] = []
    this.line.front(Number.POSITIVE_INFINITY, 1, (place) => seats.push(this.seatAt(place)))
    return seats
  }
}
