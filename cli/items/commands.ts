// The commands of fleet that look after items.

import { type Entry, entry } from '../program.ts'
import { embed } from './embed.ts'
import { reindex } from './reindex.ts'

export const itemsCommands: readonly Entry[] = [entry(reindex), entry(embed)]
