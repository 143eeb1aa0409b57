// The waiting room of each match that has one: its settings, phase and seed. What decides survives here; the queue itself
// is in Redis, or in db/waitingPlaces.ts. Every function is one statement.

import { sql } from 'kysely'
import type { QueuePhase, QueueStatus } from '../domain/waitingroom.ts'
import type { Db, Tx } from './schema.ts'

export type WaitingRoom = {
  matchId: string
  epoch: number
  phase: QueuePhase
  status: QueueStatus
  ratePerMinute: number
  capacity: number
  /** Hex; secret until the phase is `open`. */
  seed: string
  lobbySize: number
  drawnBaseUs: number
  lastSeat: number
  lastUs: number
  reason: string | undefined
}

const columns = [
  'match_id',
  'epoch',
  'phase',
  'status',
  'rate_per_minute',
  'capacity',
  'seed',
  'lobby_size',
  'drawn_base_us',
  'last_seat',
  'last_us',
  'reason',
] as const

type Row = {
  match_id: string
  epoch: number
  phase: QueuePhase
  status: QueueStatus
  rate_per_minute: number
  capacity: number
  seed: string
  lobby_size: number
  drawn_base_us: string
  last_seat: number
  last_us: string
  reason: string | null
}

const toRoom = (row: Row): WaitingRoom => ({
  matchId: row.match_id,
  epoch: row.epoch,
  phase: row.phase,
  status: row.status,
  ratePerMinute: row.rate_per_minute,
  capacity: row.capacity,
  seed: row.seed,
  lobbySize: row.lobby_size,
  drawnBaseUs: Number(row.drawn_base_us),
  lastSeat: row.last_seat,
  lastUs: Number(row.last_us),
  reason: row.reason ?? undefined,
})

export type NewRoom = { ratePerMinute: number; capacity: number; seed: string }

/** Makes the room where the event asks for one and it has none yet. Undefined: no such event, or none with a room. */
export async function ensureRoom(
  db: Db,
  matchId: string,
  made: NewRoom,
): Promise<WaitingRoom | undefined> {
  const found = await readRoom(db, matchId)
  if (found) return found
  await sql`
    insert into waiting_rooms (match_id, rate_per_minute, capacity, seed)
    select id, ${made.ratePerMinute}, ${made.capacity}, ${made.seed} from events
    where id = ${matchId} and waiting_room
    on conflict (match_id) do nothing`.execute(db)
  return await readRoom(db, matchId)
}

export async function readRoom(on: Db | Tx, matchId: string): Promise<WaitingRoom | undefined> {
  const row = await on
    .selectFrom('waiting_rooms')
    .select(columns)
    .where('match_id', '=', matchId)
    .executeTakeFirst()
  return row && toRoom(row)
}

/** A sale may go on while the event does. */
const goesOnHours = 24

/**
 * Those that are not closed, and those whose last purchase windows are still open. Nobody closes a queue that did not sell
 * out: it is over a day after its event began, and is alive again for as long as somebody asks for it.
 */
export async function readLiveRooms(db: Db): Promise<string[]> {
  const { rows } = await sql<{ match_id: string }>`
    select w.match_id from waiting_rooms w join events e on e.id = w.match_id
    where (w.status <> 'closed' and e.starts_at > clock_timestamp() - ${goesOnHours} * interval '1 hour')
      or exists (select from turns t where t.match_id = w.match_id and not t.freed)
    order by w.match_id`.execute(db)
  return rows.map((row) => row.match_id)
}

export type RoomChange = {
  phase?: QueuePhase
  status?: QueueStatus
  ratePerMinute?: number
  capacity?: number
  lobbySize?: number
  drawnBaseUs?: number
  reason?: string
  remainingSectors?: readonly string[]
}

/** @returns the room as it is then. A closed one stays closed, and its change is undefined. */
export async function changeRoom(
  on: Db | Tx,
  matchId: string,
  change: RoomChange,
): Promise<WaitingRoom | undefined> {
  const { phase, status, ratePerMinute, capacity, lobbySize, drawnBaseUs } = change
  const row = await on
    .updateTable('waiting_rooms')
    .set({
      ...(phase !== undefined && { phase }),
      ...(status !== undefined && { status }),
      ...(ratePerMinute !== undefined && { rate_per_minute: ratePerMinute }),
      ...(capacity !== undefined && { capacity }),
      ...(lobbySize !== undefined && { lobby_size: lobbySize }),
      ...(drawnBaseUs !== undefined && { drawn_base_us: drawnBaseUs }),
      ...(change.reason !== undefined && { reason: change.reason }),
      ...(change.remainingSectors && {
        remaining_sectors: JSON.stringify(change.remainingSectors),
      }),
      ...(phase === 'open' && { opened_at: sql<Date>`coalesce(opened_at, clock_timestamp())` }),
      ...(status === 'closed' && { closed_at: sql<Date>`clock_timestamp()` }),
    })
    .where('match_id', '=', matchId)
    .where('status', '<>', 'closed')
    .returning(columns)
    .executeTakeFirst()
  return row && toRoom(row)
}

/** What the store kept is lost: the room begins a new epoch. */
export async function reviveRoom(db: Db, matchId: string): Promise<WaitingRoom | undefined> {
  const row = await db
    .updateTable('waiting_rooms')
    .set({ epoch: sql`epoch + 1` })
    .where('match_id', '=', matchId)
    .returning(columns)
    .executeTakeFirst()
  return row && toRoom(row)
}

/** How far seats have been given, roughly: it never goes back. */
export async function noteLastSeat(db: Db, matchId: string, lastSeat: number): Promise<void> {
  await db
    .updateTable('waiting_rooms')
    .set({ last_seat: lastSeat })
    .where('match_id', '=', matchId)
    .where('last_seat', '<', lastSeat)
    .execute()
}

export type RoomOverview = {
  matchId: string
  /** Of the event. */
  name: string
  phase: QueuePhase
  status: QueueStatus
  ratePerMinute: number
  capacity: number
  /** The newest number given; about a second old where Redis keeps the places. */
  lastSeat: number
  openWindows: number
  /** Turns given in the last five minutes, a minute. */
  pacePerMinute: number
  /** Places that Postgres keeps: none of a room that Redis keeps. */
  places: number
  reason: string | null
  openedAt: Date | null
  closedAt: Date | null
}

/** For people: the live rooms first, then the latest. By turns_unfreed, turns_settled and the primary keys. */
export async function readRoomOverviews(db: Db, max: number): Promise<RoomOverview[]> {
  const { rows } = await sql<RoomOverview>`
    select w.match_id as "matchId", coalesce(e.name, '-') as name, w.phase, w.status,
      w.rate_per_minute as "ratePerMinute", w.capacity, w.last_seat as "lastSeat",
      t.open as "openWindows", t.recent / 5.0::float8 as "pacePerMinute", p.places, w.reason,
      w.opened_at as "openedAt", w.closed_at as "closedAt"
    from (
      select * from waiting_rooms order by status = 'closed', created_at desc limit ${max}) w
    left join events e on e.id = w.match_id
    cross join lateral (
      select count(*) filter (where state = 'open')::int as open,
        count(*) filter (where granted_at > clock_timestamp() - interval '5 minutes')::int as recent
      from turns where match_id = w.match_id
        and (not freed or settled_at > clock_timestamp() - interval '5 minutes')) t
    cross join lateral (
      select count(*)::int as places from waiting_places where match_id = w.match_id) p
    order by w.status = 'closed', w.created_at desc`.execute(db)
  return rows
}
