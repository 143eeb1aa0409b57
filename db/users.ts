// Users as the shop knows them: where their mails and pushes go, and in which language.

import { sql } from 'kysely'
import type { Db, Tx } from './schema.ts'

/** Exactly one of the two: an FCM registration token or a Firebase installation id. */
export type Device = { token?: string | undefined; fid?: string | undefined }

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
  if (devices.length === 0) return
  await tx
    .insertInto('devices')
    .values(
      devices.map(({ token, fid }) => ({
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
