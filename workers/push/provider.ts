// The port to whoever takes pushes: one device a call. What it answers is data, and each answer has its own rule: sent,
// gone, refused for good, or not now. It throws nothing but what is our own fault.

import type { PushJob } from '../../domain/pushes.ts'

export type Device = { kind: 'token' | 'fid'; value: string }

/** One push to one device. */
export type Push = {
  job: PushJob
  device: Device
  /** Until when it is worth something. */
  expiresAt: Date
}

export type PushOutcome =
  | { is: 'sent' }
  /** The device is known no more (UNREGISTERED). */
  | { is: 'gone' }
  /** Never: the message, the device or we are refused for good. `ours`: by what is true of all pushes alike. */
  | { is: 'rejected'; code: string; why: string; ours: boolean }
  /** Not now, but not sooner than `afterMs`; whether the phone got it may be unknown. */
  | { is: 'retry'; code: string; afterMs: number; why: string }
  /** Not even asked, since there is no way to. No attempt is spent. */
  | { is: 'away'; why: string }

export type PushProvider = {
  name: string
  /** `turn` is awaited before each request. The signal aborts when the caller cannot wait longer. */
  send(push: Push, turn: () => Promise<void>, signal: AbortSignal): Promise<PushOutcome>
  close(): Promise<void>
}
