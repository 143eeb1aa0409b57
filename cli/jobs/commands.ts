// The commands of the program jobs.

import { completion } from '../completion.ts'
import { type Entry, entry } from '../program.ts'
import { cancel } from './cancel.ts'
import { failedRemove } from './failedRemove.ts'
import { failedRetry } from './failedRetry.ts'
import { failedShow } from './failedShow.ts'
import { list } from './list.ts'
import { pause, resume } from './pause.ts'
import { send } from './send.ts'
import { show } from './show.ts'
import { stats } from './stats.ts'
import { stopWorkers } from './stopWorkers.ts'
import { workers } from './workers.ts'

export const jobsCommands: readonly Entry[] = [
  entry(stats),
  entry(list),
  entry(show),
  entry(failedShow),
  entry(failedRetry),
  entry(failedRemove),
  entry(send),
  entry(pause),
  entry(resume),
  entry(cancel),
  entry(workers),
  entry(stopWorkers),
  entry(completion),
]

export const jobsEpilogue =
  'Exit codes: 0 done, 1 failed, 2 wrong usage, 3 nothing matched.\n' +
  '`jobs` is also a builtin of the shell, which wins over this program at a prompt and under npx. ' +
  '`npx fleet jobs …` always works; after  eval "$(npx fleet shell-init)"  so does plain `jobs …`, with completion.'
