// A job in hand, and whether it must be dropped: the grace is over, its time is, or it is ours no more. What all that
// were claimed about the same time have in common is one signal, the deadline; a job's own is made when it begins.

import type { Job } from '../db/jobs.ts'

/** Who has it instead: nobody, as somebody cancelled it; or another worker, as this one was taken for dead. */
export type Taken = 'cancelled' | 'lost'

const reasons: Record<Taken, string> = {
  cancelled: 'somebody cancelled the job',
  lost: 'the job is in the hands of another worker',
}

export class Held {
  readonly job: Job
  readonly #deadline: AbortSignal
  readonly #beginBy: number
  #own: AbortController | undefined
  #taken: Taken | undefined

  /** @param beginBy by performance.now(): afterwards too little of its time is left */
  constructor(job: Job, deadline: AbortSignal, beginBy: number) {
    this.job = job
    this.#deadline = deadline
    this.#beginBy = beginBy
  }

  get taken(): Taken | undefined {
    return this.#taken
  }

  get isDropped(): boolean {
    return this.#taken !== undefined || this.#deadline.aborted
  }

  get mayBegin(): boolean {
    return !this.isDropped && performance.now() < this.#beginBy
  }

  get signal(): AbortSignal {
    this.#own ??= new AbortController()
    this.passOn()
    return this.#own.signal
  }

  /** It is ours no more. */
  take(taken: Taken): void {
    this.#taken = taken
    this.passOn()
  }

  /** To be called when the deadline aborts: a listener for each job would cost more than the signal. */
  passOn(): void {
    if (!this.isDropped) return
    const reason = this.#taken ? new Error(reasons[this.#taken]) : this.#deadline.reason
    this.#own?.abort(reason)
  }
}
