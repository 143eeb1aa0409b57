// The feature flags and the circuits of vendors: what is on, who or what switched it off and why. A person's word stands
// until a person says otherwise; it takes a reason.

import { listCircuits } from '../../../db/circuits.ts'
import { type FlagRow, readFlagChanges, readFlags, setFlag } from '../../../db/flags.ts'
import { AppError } from '../../../domain/errors.ts'
import { flags as flagList } from '../../../domain/flags.ts'
import { redact } from '../../../domain/redact.ts'
import { act, field, pressed } from './act.ts'
import { type Html, html, link, type Part } from './html.ts'
import { form } from './layout.ts'
import { table } from './table.ts'
import type { PageOf, Redirect, Signed } from './visit.ts'
import { age, badge, moment, said } from './words.ts'

const changesMax = 20
const reasonMax = 200

export const flags: PageOf = async ({ db }, visit) => {
  const [list, circuits, changes] = await Promise.all([
    readFlags(db),
    listCircuits(db),
    readFlagChanges(db, changesMax),
  ])
  return {
    title: 'Flags',
    live: html`<section class="card"><h2>Flags</h2>${table({
      caption: 'Feature flags',
      columns: [
        { head: 'Flag' },
        { head: 'State' },
        { head: 'Since' },
        { head: 'Why', wide: true },
      ],
      rows: list.map((row) => ({
        key: row.name,
        ...(!row.enabled && { tone: 'warn' as const }),
        cells: cells(row),
      })),
      empty: 'There is no flag.',
    })}</section>
<section class="card"><h2>Circuits</h2>${table({
      caption: 'Circuits of vendors, the open ones first',
      columns: [
        { head: 'Circuit' },
        { head: 'State' },
        { head: 'Last opened' },
        { head: 'Vain tries', numeric: true },
        { head: 'Why', wide: true },
      ],
      rows: circuits.map(({ name, isOpen, why, tries, waitMs, openedAt }) => ({
        key: name,
        ...(isOpen && { tone: 'bad' as const }),
        cells: [
          name,
          html`${isOpen ? badge('open', 'bad') : badge('closed', 'good')}${isOpen && html` <span class="soft">${waitMs > 0 ? `tried again in ${age(waitMs / 1000)}` : 'the next call tries'}</span>`}`,
          moment(openedAt),
          tries,
          said(why),
        ],
      })),
      empty: 'No vendor was ever away.',
    })}</section>
<section class="card"><h2>Changes</h2>${table({
      caption: 'Changes of flags, the latest first',
      columns: [
        { head: 'When' },
        { head: 'Flag' },
        { head: 'To' },
        { head: 'By' },
        { head: 'Why', wide: true },
      ],
      rows: changes.map((change, i) => ({
        key: `${change.changed_at.toISOString()} ${change.name} ${i}`,
        cells: [
          moment(change.changed_at),
          change.name,
          change.enabled ? 'on' : 'off',
          change.changed_by,
          said(change.reason),
        ],
      })),
      empty: 'No flag was ever changed.',
    })}</section>`,
    still: html`<section class="card"><h2>Switch a flag</h2>${switchForm(visit, list)}</section>`,
  }
}

function cells({
  name,
  purpose,
  enabled,
  is_auto,
  changed_at,
  changed_by,
  reason,
}: FlagRow): Part[] {
  return [
    html`${name} <span class="soft purpose">${purpose}</span>`,
    html`${enabled ? badge('on', 'good') : badge('off', 'warn')}${is_auto && !enabled && html` <span class="soft">by its circuit</span>`}`,
    moment(changed_at),
    changed_by && html`${said(reason ?? '')} <span class="soft">${changed_by}</span>`,
  ]
}

function switchForm(visit: Signed, list: readonly FlagRow[]): Html {
  const options = list.map(({ name }) => html`<option>${name}</option>`)
  return form(
    visit,
    'flags/do',
    html`<div class="filter"><label>Flag <select name="flag">${options}</select></label>
<label class="grow">Why <input name="reason" required maxlength="${reasonMax}" autocomplete="off"></label>
<button name="do" value="off" class="danger">Switch off</button> <button name="do" value="on" class="strong">Switch on</button></div>
<p class="soft">What a person switches off no circuit switches on again.</p>`,
  )
}

export const flagForm: PageOf = async (parts, visit): Promise<Redirect> => {
  const given = field(visit, 'flag')
  const name = flagList.find((flag) => flag.name === given)?.name
  if (name === undefined) throw new AppError('NOT_FOUND', 'there is no flag of that name')
  const what = pressed(visit, 'on', 'off')
  const reason = redact(field(visit, 'reason').trim().slice(0, reasonMax))
  const action = { action: `flag.${what}`, subject: name, detail: { reason } }
  const did = await act(parts, visit, action, async () => {
    const by = `console ${visit.address}`
    const changed = await setFlag(parts.db, name, what === 'on', { reason, by })
    const says = changed ? `${name} is ${what}` : `${name} was ${what} already`
    return { says, done: Number(changed) }
  })
  return { to: link('/console/flags', { did }) }
}
