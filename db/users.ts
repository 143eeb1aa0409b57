// Users as the shop knows them: where their mails and pushes go, and in which language.

import { sql } from 'kysely'
import type { Db, Tx } from './schema.ts'

/** Exactly one of the two: an FCM registration token or a Firebase installation id. */
export type Device = {
  token?: string | undefined
  fid?: string | undefined
  /** The registration token that the same phone was known by until now: it gets no pushes any more. */
  replaces?: string | undefined
}

export type PutUser = {
  userId: string
  email?: string | undefined
  locale?: string | undefined
  /** All devices of the user; undefined leaves them as they are. */
  devices?: readonly Device[] | undefined
}

export type UserBody = { user_id: string; email: string | null; locale: string; devices: Device[] }

/** Makes the user or changes what is given of it; a device that was another user's is now this one's. */
export async function putUser(tx: Tx, user: PutUser): Promise<UserBody> {
  const row = await tx
    .insertInto('users')
    .values({
      id: user.userId,
      ...(user.email !== undefined && { email: user.email }),
      ...(user.locale !== undefined && { locale: user.locale }),
    })
    .onConflict((conflict) =>
      conflict.column('id').doUpdateSet({
        ...(user.email !== undefined && { email: user.email }),
        ...(user.locale !== undefined && { locale: user.locale }),
        updated_at: sql`clock_timestamp()`,
      }),
    )
    .returning(['email', 'locale'])
    .executeTakeFirstOrThrow()
  if (user.devices !== undefined) await replaceDevices(tx, user.userId, user.devices)
  const devices = await tx
    .selectFrom('devices')
    .select(['kind', 'value'])
    .where('user_id', '=', user.userId)
    .orderBy('kind')
    .orderBy('value')
    .execute()
  return { user_id: user.userId, ...row, devices: devices.map((d) => ({ [d.kind]: d.value })) }
}

async function replaceDevices(tx: Tx, userId: string, devices: readonly Device[]): Promise<void> {
  await tx.deleteFrom('devices').where('user_id', '=', userId).execute()
  const replaced = new Set(
    devices.map(({ replaces }) => replaces).filter((old) => old !== undefined),
  )
  if (replaced.size > 0) {
    await sql`
      delete from devices where kind = 'token' and value = any(${[...replaced]})`.execute(tx)
  }
  const kept = devices.filter(({ token }) => token === undefined || !replaced.has(token))
  if (kept.length === 0) return
  await tx
    .insertInto('devices')
    .values(
      kept.map(({ token, fid }) => ({
        user_id: userId,
        kind: token === undefined ? ('fid' as const) : ('token' as const),
        value: token ?? fid!,
      })),
    )
    .onConflict((conflict) => conflict.columns(['kind', 'value']).doUpdateSet({ user_id: userId }))
    .execute()
}

export type Recipient = { id: string; email: string | null; locale: string }

/** Those of `ids` that are known. */
export async function readRecipients(on: Db | Tx, ids: readonly string[]): Promise<Recipient[]> {
  if (ids.length === 0) return []
  return await on
    .selectFrom('users')
    .select(['id', 'email', 'locale'])
    .where(sql<boolean>`id = any(${[...ids]})`)
    .execute()
}

export type KnownDevice = { user_id: string; kind: 'token' | 'fid'; value: string }

/** Where pushes to these users go. */
export async function readDevices(on: Db | Tx, ids: readonly string[]): Promise<KnownDevice[]> {
  if (ids.length === 0) return []
  return await on
    .selectFrom('devices')
    .select(['user_id', 'kind', 'value'])
    .where(sql<boolean>`user_id = any(${[...ids]})`)
    .orderBy('user_id')
    .orderBy('kind')
    .orderBy('value')
    .execute()
}

/** FCM knows it no more. The same device of another user is left alone. @returns whether it was there */
export async function removeDevice(
  db: Db,
  { user_id, kind, value }: KnownDevice,
): Promise<boolean> {
  const done = await db
    .deleteFrom('devices')
    .where('kind', '=', kind)
    .where('value', '=', value)
    .where('user_id', '=', user_id)
    .executeTakeFirst()
  return done.numDeletedRows > 0n
}
