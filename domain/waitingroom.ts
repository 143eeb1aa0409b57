// The waiting room of a match as all its parts speak of it: a queue's state, a place in it, a purchase window, and the
// port behind which Redis or Postgres keeps them. A match is an event; its id is the event's.
//
// A place is a seat number, given in the order of arrival and never again. In the lobby it says nothing yet: when the
// queue opens, the first `lobbySize` seats are put in an order drawn by lot (domain/draw.ts), and whoever comes later
// stands behind them as they come. `placeOf` says where a seat stands; a lower place is nearer to the front.

export type QueueStatus = 'active' | 'paused' | 'closed'
/** Drawing: nobody enters the lobby any more, and the order is being written down. */
export type QueuePhase = 'lobby' | 'drawing' | 'open'

export type QueueState = {
  /** Grows when what the store keeps had to be made anew: places are then restored from their tokens. */
  epoch: number
  /** When that was, after a loss; 0: nothing was ever lost. */
  revivedAtMs: number
  phase: QueuePhase
  status: QueueStatus
  /** Users a minute that are to be let in. */
  ratePerMinute: number
  /** Purchase windows open at once at most. */
  capacity: number
  /** Users let in a minute just now; 0: nobody was yet. */
  pacePerMinute: number
  /** How many stood in the lobby when it was closed; 0 before. */
  lobbySize: number
  /** Before every later arrival: the drawn place p has the score drawnBaseUs + p. */
  drawnBaseUs: number
  /** SHA-256 of the draw's seed, known from the start. */
  commitment: string
  /** Hex; known once it was used. */
  seed: string | undefined
  /** Why it is closed. */
  reason: string | undefined
}

/** What a queue token says of a place. */
export type Ticket = { seat: number; joinedUs: number; epoch: number }

export type PurchaseWindow = {
  seat: number
  userId: string
  sessionToken: string
  expiresAtMs: number
}

export type Joined =
  /** At position 0 it is the user's turn within moments. */
  | { is: 'waiting'; ticket: Ticket; position: number; isNew: boolean }
  | { is: 'admitted'; window: PurchaseWindow }
  | { is: 'closed'; reason: string }

/** What changed in a queue, in steps numbered without a gap. Applying one twice is harmless. */
export type Delta = {
  n: number
  /** By the store's clock. */
  atMs: number
  /** The last seat given. */
  lastSeat: number
  /** Those who are let in among them. */
  left: number[]
  /** Seats that had been given up, or lost, and are taken again. */
  back: number[]
  granted: PurchaseWindow[]
  /** Seats whose purchase window is over, with why. */
  over: { seat: number; reason: WindowEnd }[]
  state?: QueueState
}

/** A queue as it stands, from which deltas after `n` lead on. */
export type Snapshot = {
  n: number
  lastSeat: number
  seats: number[]
  /** Let in, which is not durable yet: a step that grants them follows. */
  called: number[]
  windows: PurchaseWindow[]
  state: QueueState
}

/** Used: an order, or at least a hold, came of it. */
export type WindowEnd = 'used' | 'window_timeout' | 'left'

export type AdmitOptions = {
  /** Who asks: one process at a time leads a match. */
  leader: string
  /** How many the rate allows now. */
  want: number
}

export type Led =
  | { is: 'other' }
  | {
      is: 'leader'
      /** The lead was taken just now: whatever a former leader knew is not known. */
      isNew: boolean
      admitted: number
      waiting: number
      openWindows: number
      lastSeat: number
    }

/** Somebody near the front who shows no sign of being connected. */
export type Quiet = { userId: string; seat: number; position: number }

export type QueueStore = {
  name: 'redis' | 'postgres'
  /** @returns the user's place, the same as often as it is asked for */
  join(matchId: string, userId: string): Promise<Joined>
  /** As join, but changes nothing. Undefined: the user is not in the queue. */
  find(matchId: string, userId: string): Promise<Joined | undefined>
  /** Gives a place back that the store lost; `score` is where it stood. */
  restore(matchId: string, userId: string, seat: number, score: number): Promise<Joined>
  /** @returns whether there was a place to give up; a purchase window is not one */
  leave(matchId: string, userId: string): Promise<boolean>
  /** What others may look up of a user's session; kept as long as the place without a sign of life. */
  noteSession(matchId: string, userId: string, session: QueueSession): Promise<void>
  /** Signs of life. */
  touch(matchId: string, userIds: readonly string[]): Promise<void>
  snapshot(matchId: string): Promise<Snapshot>
  /** The steps after `n`, in order; undefined: some of them are not kept any more. */
  changes(matchId: string, n: number): Promise<Delta[] | undefined>
  /** Called with a match that has changed; with none when any may have. */
  onChange(listener: (matchId: string | undefined) => void): void
  /** Writes the new state, after Postgres has it. */
  control(matchId: string, change: Partial<QueueState>): Promise<void>
  /** Ends the lobby. Repeated, it gives the same size. */
  seal(matchId: string): Promise<{ lobbySize: number; drawnBaseUs: number }>
  /** Puts the lobby in order: seat s stands at place places[s - 1]. */
  writeDraw(matchId: string, drawnBaseUs: number, places: Uint32Array): Promise<void>
  /** One step of the match's leader: admits, exactly once each, and makes it durable before anyone is told. */
  admit(matchId: string, options: AdmitOptions): Promise<Led>
  /** Purchase windows that are over leave room for others. */
  free(matchId: string, windows: readonly (PurchaseWindow & { reason: WindowEnd })[]): Promise<void>
  /** Drops places without a sign of life for `seconds`. @returns how many went */
  drop(matchId: string, seconds: number): Promise<number>
  /** Of the first `front`, those without a sign of life for `seconds` that were not named before. */
  quiet(matchId: string, front: number, seconds: number): Promise<Quiet[]>
  /** They were told: quiet names them no more. */
  noteTold(matchId: string, seats: readonly number[]): Promise<void>
  close(): Promise<void>
}

export type QueueSession = { position: number; queue_token: string; websocket_id: string | null }

/** The store is away; what was asked for may or may not have been done. Safe to repeat. */
export class QueueAway extends Error {
  constructor(cause: unknown) {
    super('the waiting room’s store does not answer', { cause })
    this.name = 'QueueAway'
  }
}
