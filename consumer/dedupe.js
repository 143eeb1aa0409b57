// Takes each message once, for a consumer whose effect is in Postgres: the mark commits in the transaction of the effect,
// so neither is there without the other, however often a message comes and whatever is killed. Works with anything that
// has pg's `query(text, values)`. Plain JavaScript without dependencies: copy it, or depend on this folder.

// @ts-check

/** Run once, in the schema that the consumer uses. `consumer` lets several share a table. */
export const ddl = `
create table if not exists processed_events (
  consumer text not null,
  message_id uuid not null,
  processed_at timestamptz not null default clock_timestamp(),
  primary key (consumer, message_id)
);
create index if not exists processed_events_at on processed_events using brin (processed_at);`

/** Longer than anything sends a message again: 8 days. */
export const keepSeconds = 8 * 86_400

const uuid = /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/i

/**
 * @typedef {{ query(text: string, values: unknown[]): Promise<{ rows: any[], rowCount: number | null }> }} Client
 */

/**
 * Marks messages as processed and gives those that `consumer` had not seen, each once, in the order given. Of two
 * transactions with the same message the second waits for the first. Use READ COMMITTED (Postgres's default); under
 * SERIALIZABLE repeat the transaction on 40001.
 *
 * @param {Client} tx a connection inside the transaction that has the effect as well
 * @param {string} consumer
 * @param {readonly string[]} ids the events' `id`s
 * @returns {Promise<string[]>} as they were given, each once whatever its spelling: do what these ask for, in `tx`; acknowledge all of them after the commit
 */
export async function once(tx, consumer, ids) {
  /** By the one spelling that Postgres gives a uuid, the first that came. @type {Map<string, string>} */
  const byKey = new Map()
  for (const id of ids) {
    if (!uuid.test(id))
      throw new TypeError(`an event's id must be a UUID, not ${JSON.stringify(id)}`)
    const key = id.toLowerCase()
    if (!byKey.has(key)) byKey.set(key, id)
  }
  if (byKey.size === 0) return []
  // In the order of the ids: two batches with the same messages wait for each other in one direction only.
  const sorted = [...byKey.keys()].sort()
  const { rows } = await tx.query(
    `insert into processed_events (consumer, message_id)
     select $1, id from unnest($2::uuid[]) as id
     on conflict do nothing returning message_id`,
    [consumer, sorted],
  )
  const fresh = new Set(rows.map((row) => row.message_id))
  return [...byKey].flatMap(([key, id]) => (fresh.has(key) ? [id] : []))
}

/**
 * Forgets what is older than `keepSeconds`, a batch at a time: call it now and then until it gives 0.
 *
 * @param {Client} client
 * @returns {Promise<number>} how many went
 */
export async function prune(client, batchMax = 5000) {
  const { rowCount } = await client.query(
    `delete from processed_events where ctid = any(array(
       select ctid from processed_events
       where processed_at < clock_timestamp() - $1 * interval '1 second' limit $2))`,
    [keepSeconds, batchMax],
  )
  return rowCount ?? 0
}
