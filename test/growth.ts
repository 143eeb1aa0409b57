// Whether a schema only grew: what code of the release before reads and writes is there still, and nothing that it writes
// is refused by something it does not know of. Asked of Postgres's catalogues, so that it does not matter how a migration
// is worded. Triggers and bodies of functions are not looked into.

import { sql } from 'kysely'
import type { Db } from '../db/schema.ts'

type Thing = {
  kind: 'table' | 'column' | 'function' | 'constraint'
  /** A column's table, a constraint's; of a table and a function its own name. */
  of: string
  name: string
  /** What must stay as it is: a column's type, a function's arguments and result. */
  shape: string
  /** Of a column: an INSERT must name it. Of a constraint: it refuses rows. */
  demands: boolean
}

export type Shape = readonly Thing[]

export async function readShape(db: Db): Promise<Shape> {
  const { rows } = await sql<Thing>`
    select 'table' as kind, c.relname as of, c.relname as name, '' as shape, false as demands
    from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p', 'v')
    union all
    select 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
      a.attnotnull and not a.atthasdef and a.attidentity = ''
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p', 'v')
    union all
    select 'function', p.proname, p.proname,
      pg_get_function_arguments(p.oid) || ' -> ' || coalesce(pg_get_function_result(p.oid), ''), false
    from pg_proc p where p.pronamespace = 'public'::regnamespace
    union all
    select 'constraint', c.relname, coalesce(k.conname, i.relname), '', true
    from pg_class c
    join pg_index x on x.indrelid = c.oid and x.indisunique
    join pg_class i on i.oid = x.indexrelid
    left join pg_constraint k on k.conindid = i.oid and k.conrelid = c.oid
    where c.relnamespace = 'public'::regnamespace
    union all
    select 'constraint', c.relname, k.conname, '', true
    from pg_class c join pg_constraint k on k.conrelid = c.oid and k.contype in ('c', 'f', 'x')
    where c.relnamespace = 'public'::regnamespace`.execute(db)
  return rows
}

const same = (a: Thing) => (b: Thing) => a.kind === b.kind && a.of === b.of && a.name === b.name

/** What the code before cannot live with, in words for whoever wrote the migration. */
export function faultsOf(before: Shape, after: Shape): string[] {
  const tables = new Set(before.filter(({ kind }) => kind === 'table').map(({ of }) => of))
  const gone = before
    .filter(({ kind }) => kind !== 'constraint')
    .flatMap((thing) => faultOfOld(thing, after.filter(same(thing))))
  const come = after
    .filter((thing) => tables.has(thing.of) && !before.some(same(thing)))
    .flatMap((thing) => faultOfNew(thing))
  return [...new Set([...gone, ...come])]
}

function faultOfOld({ kind, of, name, shape, demands }: Thing, now: Thing[]): string[] {
  const called = kind === 'column' ? `the column ${of}.${name}` : `the ${kind} ${name}`
  const kept = now.find((thing) => thing.shape === shape)
  if (now.length === 0) return [`${called} is gone: the code before still uses it`]
  if (kept === undefined) {
    return [`${called} was "${shape}" and is "${now[0]?.shape}": add another one instead`]
  }
  if (kind === 'function' && now.length > 1) {
    return [`${called} has a namesake: which one the code before means is not clear`]
  }
  return !demands && kept.demands
    ? [`${called} must have a value now: the code before writes none`]
    : []
}

function faultOfNew({ kind, of, name, demands }: Thing): string[] {
  if (!demands) return []
  return kind === 'column'
    ? [`the new column ${of}.${name} has neither a default nor null: the code before writes none`]
    : [`the new constraint ${name} of ${of} refuses what the code before may write`]
}
