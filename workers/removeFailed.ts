// Failed jobs removed by an operator, from the shell or the console: who asked for a command is told that it was given up.

import { type Chosen, type Moved, removeFailed as remove } from '../db/redrive.ts'
import type { Db } from '../db/schema.ts'
import { givenUpCommand } from './problem.ts'

export const removeFailed = (db: Db, chosen: Chosen): Promise<Moved[]> =>
  remove(db, chosen, givenUpCommand)
