// jobs stop-workers: every worker finishes what it has and exits. What starts them (systemd, Kubernetes, fleet up) starts
// them again, on new code: this is how a release is rolled out.

import { setTimeout as sleep } from 'node:timers/promises'
import { readWorkers, requestStop } from '../../db/registry.ts'
import type { Db } from '../../db/schema.ts'
import { withDatabase } from '../database.ts'
import { type Command, type Context, Exit, givenOnce } from '../program.ts'
import { jsonOption, wholeNumber } from './options.ts'

type Arguments = { wait: boolean; timeout: string; json: boolean }

const lookMs = 250

export const stopWorkers: Command<Arguments> = (context) => ({
  command: 'stop-workers',
  describe: 'let every worker finish what it has and exit',
  builder: (yargs) =>
    yargs
      .option('wait', { type: 'boolean', default: false, describe: 'until they are gone' })
      .option('timeout', {
        type: 'string',
        default: '60',
        requiresArg: true,
        describe: 'how long to wait at most, s',
      })
      .option('json', jsonOption),
  handler: async ({ wait, json, ...given }) => {
    const timeout = wholeNumber('timeout', givenOnce('timeout', given.timeout) ?? '', 1, 86_400)
    await withDatabase(context.env, async ({ db }) => {
      const askedAt = await requestStop(db)
      const asked = await stillThere(db, askedAt)
      const left = wait ? await untilGone(context, db, askedAt, asked.length, timeout) : asked
      if (json) {
        context.say(
          JSON.stringify({ asked_at: askedAt, asked: asked.length, left: left.length }, null, 2),
        )
      } else if (asked.length === 0)
        context.say('no worker is alive; one that starts from now on stays')
      else if (wait && left.length === 0) context.say(`${asked.length} workers have stopped`)
      else if (!wait)
        context.say(`asked ${asked.length} workers: each finishes what it has and exits`)
      if (wait && left.length > 0) {
        const names = left
          .map(({ name, host, pid }) => `${name} (pid ${pid} on ${host})`)
          .join(', ')
        throw new Exit('failed', `still there after ${timeout} s: ${names}`)
      }
    })
  },
})

const stillThere = async (db: Db, askedAt: Date) =>
  (await readWorkers(db)).filter(({ alive, startedAt }) => alive && startedAt < askedAt)

async function untilGone(
  { terminal }: Context,
  db: Db,
  askedAt: Date,
  asked: number,
  timeoutSeconds: number,
) {
  const endsAt = performance.now() + timeoutSeconds * 1000
  for (;;) {
    const left = await stillThere(db, askedAt)
    if (left.length === 0 || performance.now() > endsAt) {
      terminal?.show('')
      return left
    }
    const names = [...new Set(left.map(({ name }) => name))].join(', ')
    terminal?.show(`${asked - left.length} of ${asked} have stopped; waiting for ${names}`)
    await sleep(lookMs)
  }
}
