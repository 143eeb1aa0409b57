// The commands of fleet that look after the event loader's sources.

import { type Entry, entry } from '../program.ts'
import { add } from './add.ts'
import { pause, resume } from './pause.ts'
import { remove } from './remove.ts'
import { reset } from './reset.ts'
import { status } from './status.ts'

export const loaderCommands: readonly Entry[] = [
  entry(status),
  entry(add),
  entry(remove),
  entry(pause),
  entry(resume),
  entry(reset),
]
