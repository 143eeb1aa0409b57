// Writes the table of all settings to docs/settings.md: `node cli/exportSettings.ts`. Names, defaults and meanings stand
// in the workers' config.ts and nowhere else; a test holds that the page is current.

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Setting } from '../workers/config.ts'
import { type Worker, workers } from './workers.ts'

export const settingsPage = join(import.meta.dirname, '..', 'docs', 'settings.md')

export type ListedSetting = {
  name: string
  setting: Setting<unknown>
  by: string[]
  /** What it says, with those it says that to: a setting may mean another thing to another worker. */
  docs: Map<string, string[]>
}

/** Those of all workers first, then those of each in the order of the list; a setting that several have stands once. */
export function listSettings(all: readonly Worker[] = workers): ListedSetting[] {
  const found = new Map<string, ListedSetting>()
  for (const { name: worker, settings } of all) {
    for (const [name, setting] of Object.entries(settings)) {
      const known: ListedSetting = found.get(name) ?? { name, setting, by: [], docs: new Map() }
      known.by.push(worker)
      known.docs.set(setting.doc, [...(known.docs.get(setting.doc) ?? []), worker])
      found.set(name, known)
    }
  }
  const ofAll = (one: ListedSetting) => one.by.length === all.length
  const listed = [...found.values()]
  return [...listed.filter(ofAll), ...listed.filter((one) => !ofAll(one))]
}

const head = `# Settings

What the workers read from their environment. An empty variable counts as unset; a setting marked *secret* is also read
from the file that \`NAME_FILE\` names, and is never printed. Each worker checks all of its settings at its start and names
every fault at once (exit 78); \`npx fleet check\` does so for the whole fleet and asks whether what they name can be reached.

*required*: the worker refuses to start without it. *made*: in development made at random and kept in
\`FLEET_DATA_DIR/secrets\`; with \`NODE_ENV=production\` required.

This page is written by \`node cli/exportSettings.ts\` from the \`config.ts\` of the workers.

| setting | workers | default | what it says |
| --- | --- | --- | --- |
`

/** Within a cell of a table. */
/** `<` is one in code, and would begin a tag elsewhere. */
const cell = (text: string): string =>
  text.replaceAll('|', '\\|').replace(/`[^`]*`|</g, (part) => (part === '<' ? '&lt;' : part))

function row({ name, setting, by, docs }: ListedSetting): string {
  const { fallback, required, generated, secret } = setting
  const absent = generated ? '*made*' : required ? '*required*' : ''
  const byDefault = fallback === undefined ? absent : `\`${fallback.replaceAll('|', '\\|')}\``
  const readers = by.length === workers.length ? 'all' : by.join(', ')
  const says = [...docs].map(([doc, to]) => (docs.size === 1 ? doc : `${to.join(', ')}: ${doc}`))
  const meaning = `${secret ? '*secret*: ' : ''}${cell(says.join('. '))}`
  return `| \`${name}\` | ${readers} | ${byDefault} | ${meaning} |\n`
}

export const settingsText = (): string => head + listSettings().map(row).join('')

if (import.meta.main) writeFileSync(settingsPage, settingsText())
