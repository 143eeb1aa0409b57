// What the API clears up beside its requests: jobs of workers that died, asynchronous commands that were given up without
// an answer, old commands, and what the stores keep beyond its time.

import { closeDeadCommands, pruneCommands } from '../../db/commands.ts'
import type { Jobs } from '../../db/jobs.ts'
import { pruneActions } from '../../db/operatorActions.ts'
import type { Db } from '../../db/schema.ts'
import { pruneWebhooks } from '../../db/suppressions.ts'
import { recoverLoop } from '../jobs.ts'
import type { Loop } from '../loop.ts'
import { givenUpCommand } from '../problem.ts'
import { everyMinute, scheduledLoop } from '../schedule.ts'
import type { Worker } from '../worker.ts'
import { ageMaxSeconds } from './mailgunSignature.ts'
import type { Stores } from './stores.ts'

/** A signature is not believed any more long before its token is forgotten. */
const mailgunTokens = { provider: 'mailgun', keepSeconds: 4 * ageMaxSeconds }

/** For as long as Stripe, or a person at its dashboard, may send one again. */
const stripeEvents = { provider: 'stripe', keepSeconds: 30 * 86_400 }

type Parts = { db: Db; stores: Stores; jobs: Jobs; worker: Worker }

export const upkeepLoops = ({ db, stores, jobs, worker }: Parts): Loop[] => [
  recoverLoop({ jobs, queue: 'commands', worker }),
  {
    name: 'commands given up',
    pass: () => closeDeadCommands(db, givenUpCommand),
    idleMs: 5000,
    upkeep: true,
  },
  scheduledLoop({
    db,
    name: 'http prune',
    schedule: everyMinute,
    pass: async () =>
      (await stores.prune()) +
      (await pruneCommands(db)) +
      (await pruneWebhooks(db, mailgunTokens)) +
      (await pruneWebhooks(db, stripeEvents)) +
      (await pruneActions(db)),
  }),
]
