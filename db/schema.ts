// The tables as Kysely sees them, one type a table, in the order of migrations/*.sql. bigint and xid8 arrive as text.

import type { ColumnType, Generated, GeneratedAlways, Kysely, Transaction } from 'kysely'
import type { CloudEvent, EventType } from '../domain/events.ts'
import type { PaceState } from '../domain/vendorPace.ts'
import type { QueuePhase, QueueSession, QueueStatus, WindowEnd } from '../domain/waitingroom.ts'

type Made = ColumnType<Date, Date | undefined, Date>
type Json<T> = ColumnType<T, string, string>
type BigInt = ColumnType<string, number | string, number | string>

export type ReservationState = 'held' | 'confirmed' | 'cancelled' | 'expired'

/**
 * How an attempt ended: its handler failed, its worker died with it in hand, it took too long, or no repetition can
 * mend it.
 */
export type FailureKind = 'failed' | 'died' | 'late' | 'hopeless'

/** Of one queue: in hand now, settled since the start, settled a second over the last minute. */
export type QueueDoing = { active: number; handled: number; perSecond?: number }

/** What a worker says of itself. */
export type WorkerDoing = {
  queues?: Record<string, QueueDoing>
  rssBytes?: number
}

type FlagState = {
  enabled: boolean
  is_auto: boolean
  changed_by: string
  reason: string
  changed_at: Made
}

export type Schema = {
  events: {
    id: string
    name: string
    starts_at: Date
    waiting_room: boolean
    created_at: Made
  }
  sections: {
    event_id: string
    section_no: number
    name: string
    row_count: number | null
    seats_per_row: number | null
    first_seat_no: number | null
    capacity: number
    price_minor: BigInt
    currency: string
  }
  seats: {
    event_id: string
    seat_no: number
    section_no: number
    label: string
    state: Generated<'free' | 'held' | 'sold'>
    reservation_id: string | null
  }
  standing_sections: {
    event_id: string
    section_no: number
    capacity: number
    held: Generated<number>
    sold: Generated<number>
  }
  reservations: {
    id: string
    event_id: string
    user_id: string
    section_no: number
    quantity: number
    seat_nos: number[] | null
    state: Generated<ReservationState>
    version: Generated<number>
    created_at: Made
    expires_at: Date
    settled_at: Date | null
  }
  due_holds: { reservation_id: string; expires_at: Date }
  orders: {
    id: string
    reservation_id: string
    event_id: string
    user_id: string
    quantity: number
    total_minor: BigInt
    currency: string
    created_at: Made
  }
  tickets: {
    id: string
    order_id: string
    event_id: string
    section_no: number
    seat_no: number | null
    code: string
    created_at: Made
  }
  idempotency_records: {
    key: string
    fingerprint: string
    status: number
    headers: Json<Record<string, string>>
    body: string
    created_at: Made
  }
  idempotency_locks: {
    key: string
    fingerprint: string
    token: string
    locked_until: Date
  }
  rate_limits: { subject: string; minute: BigInt; count: number }
  commands: {
    id: string
    user_id: string | null
    method: string
    path: string
    body: Json<unknown> | null
    request_id: string | null
    created_at: Made
    finished_at: Date | null
    status: number | null
    headers: Json<Record<string, string>> | null
    response: string | null
  }
  outbox: {
    slot: number
    txid: Generated<string>
    id: Generated<string>
    message_id: string
    type: EventType
    subject: string
    sequence: number
    data: Json<Record<string, unknown>>
    request_id: string | null
    created_at: Made
    traceparent: string | null
  }
  outbox_cursors: {
    slot: number
    txid: Generated<string>
    id: Generated<string>
    relayed: Generated<string>
    leased_by: string | null
    leased_until: Date | null
    lease_no: Generated<string>
  }
  outbox_relays: { id: string; seen_at: Made }
  outbox_aside: {
    slot: number
    subject: string
    txid: string
    id: string
    event: Json<CloudEvent>
    /** Of the event. */
    type: GeneratedAlways<string>
    attempts: Generated<number>
    next_at: Date | null
  }
  inbox_processed: { consumer: string; message_id: string; processed_at: Made }
  users: {
    id: string
    email: string | null
    locale: Generated<string>
    created_at: Made
    updated_at: Made
  }
  devices: { user_id: string; kind: 'token' | 'fid'; value: string; created_at: Made }
  purchase_windows: {
    event_id: string
    user_id: string
    session_token: string
    expires_at: Date
  }
  waiting_rooms: {
    match_id: string
    epoch: Generated<number>
    phase: Generated<QueuePhase>
    status: Generated<QueueStatus>
    rate_per_minute: number
    capacity: number
    seed: string
    lobby_size: Generated<number>
    drawn_base_us: ColumnType<string, number | undefined, number>
    last_seat: Generated<number>
    last_us: ColumnType<string, number | undefined, number>
    reason: string | null
    remaining_sectors: Json<string[]> | null
    created_at: Made
    opened_at: Date | null
    closed_at: Date | null
  }
  waiting_places: {
    match_id: string
    user_id: string
    seat: number
    score: BigInt
    seen_at: Made
    told: Generated<boolean>
    session: Json<QueueSession> | null
  }
  turns: {
    match_id: string
    seat: number
    user_id: string
    session_token: string
    granted_at: Made
    expires_at: Date
    state: Generated<'open' | WindowEnd>
    settled_at: Date | null
    freed: Generated<boolean>
  }
  quotas: {
    id: string
    event_id: string
    user_id: string
    quantity: number
    expires_at: Date | null
    created_at: Made
  }
  rate_ramps: { name: string; level: number; changed_at: Date; pressed_at: Date }
  rate_buckets: { name: string; tokens: number; filled_at: Date }
  job_errors: {
    job_id: string
    queue: string
    attempt: number
    kind: FailureKind
    failed_at: Made
    message: string
    stack: string | null
  }
  job_audits: {
    id: string
    code: Generated<string>
    job_id: string
    dead_job_id: string
    queue: string
    type: string | null
    transport: Generated<string>
    attempts: number
    errors: Json<{ attempt: number; failed_at: string; message: string }[]>
    stack: string | null
    created_at: Made
    resolved_at: Date | null
    resolved_as: 'retried' | 'removed' | null
    noticed_at: Date | null
  }
  paused_queues: { queue: string; paused_at: Made }
  workers: {
    id: string
    name: string
    host: string
    pid: number
    version: string | null
    started_at: Made
    seen_at: Made
    doing: Json<WorkerDoing>
  }
  stop_requests: { id: Generated<number>; asked_at: Date }
  schedules: { name: string; next_at: Date; fired_at: Date | null }
  loader_sources: {
    name: string
    definition: Json<object> | null
    last_id: Generated<string>
    scan_id: string | null
    fence: Generated<string>
    owner: string | null
    paused_at: Date | null
    loaded: Generated<string>
    rate: Generated<number>
    newest_id: string | null
    failures: Generated<number>
    last_error: string | null
    failed_at: Date | null
    ok_at: Date | null
    event_at: Date | null
    seen_at: Date | null
    created_at: Made
  }
  loader_turns: {
    source: string
    token: string | null
    leased_until: Date | null
    next_at: Date
  }
  loader_seen: { source: string; id: string }
  loaded_events: { source: string; id: string; loaded_at: Made; payload: Json<unknown> }
  webhook_events: { provider: string; id: string; payload: Json<unknown>; received_at: Made }
  rate_slots: { name: string; next_at: Date }
  email_sends: {
    job_id: string
    provider: string
    state: Generated<'handed' | 'sent' | 'withdrawn' | 'given_up'>
    hands: Generated<number>
    handed_at: Made
  }
  email_suppressions: {
    address: string
    reason: 'bounce' | 'complaint' | 'unsubscribe' | 'manual'
    source: string
    created_at: Made
  }
  circuits: {
    name: string
    is_open: boolean
    why: string
    tries: Generated<number>
    opened_at: Made
    probe_at: Date
  }
  circuit_changes: {
    id: Generated<string>
    name: string
    code: string
    why: string
    changed_at: Made
  }
  items: {
    id: string
    title: string
    description: Generated<string>
    image: string | null
    version: Generated<string>
    content_version: BigInt
    search: Generated<string>
    created_at: Made
    updated_at: Made
  }
  item_spaces: {
    id: GeneratedAlways<number>
    model: string
    dimensions: number
    generation: Generated<number>
    centre: Buffer | null
    centred_on: Generated<number>
    next_generation: number | null
    next_centre: Buffer | null
    created_at: Made
  }
  item_embeddings: {
    item_id: string
    space_id: number
    content_version: BigInt
    vector: Buffer
    applied_no: string | null
    whole: Generated<boolean>
    embedded_at: Made
  }
  item_codes: {
    space_id: number
    generation: number
    item_id: string
    code: string
    reach: Generated<number>
  }
  item_neighbours: { item_id: string; other_id: string; score: number }
  item_turns: { is_only: Generated<boolean>; no: BigInt }
  vendor_limits: { name: string; state: Json<PaceState> }
  item_rebuilds: {
    target: string
    index_name: string
    after: string | null
    done: Generated<number>
    total: number
    owner: string
    started_at: Made
    seen_at: Made
  }
  operator_actions: {
    id: string
    at: Made
    who: string
    address: string
    session: string
    action: string
    subject: string
    detail: Json<Record<string, unknown>>
    state: Generated<'running' | 'done' | 'failed' | 'stopped'>
    total: number | null
    looked: Generated<number>
    done: Generated<number>
    cursor: string | null
    outcome: string | null
    seen_at: Made
    finished_at: Date | null
  }
  ended_sessions: { id: string; expires_at: Date }
  flags: FlagState & { name: string }
  flag_changes: FlagState & { id: GeneratedAlways<string>; name: string }
  dead_letter_notices: { queue: string; told_at: Date }
  rests: { name: string; until_at: Date }
  payments: {
    provider: string
    id: string
    state: 'confirmed' | 'refund_due' | 'failed'
    reservation_id: string
    amount_minor: BigInt | null
    currency: string | null
    order_id: string | null
    reason: string | null
    cancelled: Generated<boolean>
    settled_at: Made
  }
}

/** The pool: each statement its own transaction. */
export type Db = Kysely<Schema>
/** Inside a transaction. */
export type Tx = Transaction<Schema>
