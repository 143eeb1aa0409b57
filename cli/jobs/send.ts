// jobs send: makes a job by hand. The payload is an argument, @file, or - for stdin, and must be what the queue's worker
// takes.

import { readFileSync } from 'node:fs'
import { v7 as uuidv7 } from 'uuid'
import { openJobs } from '../../db/jobs.ts'
import { checkPayload } from '../../domain/payloads.ts'
import { withDatabase } from '../database.ts'
import { type Command, type Context, Exit, givenOnce } from '../program.ts'
import { jsonOption, queueList, queueNamed, wholeNumber } from './options.ts'

type Arguments = { queue: string; payload: string; delay: string; priority: string; json: boolean }

const delayMax = 365 * 86_400
const priorityMax = 1_000_000

export const send: Command<Arguments> = (context) => ({
  command: 'send <queue> <payload>',
  describe: 'make a job by hand; its payload is checked as its worker would',
  builder: (yargs) =>
    yargs
      .positional('queue', { type: 'string', demandOption: true, describe: queueList })
      .positional('payload', {
        type: 'string',
        demandOption: true,
        describe: 'a JSON object, @file to read one from a file, - for stdin',
      })
      .option('delay', {
        type: 'string',
        default: '0',
        requiresArg: true,
        describe: 'not before, s',
      })
      .option('priority', {
        type: 'string',
        default: '0',
        requiresArg: true,
        describe: 'higher first',
      })
      .option('json', jsonOption),
  handler: async ({ queue: name, payload, json, ...given }) => {
    const queue = queueNamed(name)
    const delay = wholeNumber('delay', givenOnce('delay', given.delay) ?? '', 0, delayMax)
    const priority = wholeNumber(
      'priority',
      givenOnce('priority', given.priority) ?? '',
      0,
      priorityMax,
    )
    // To yargs a lone - is an empty argument.
    const source = payload === '' && context.argv.includes('-') ? '-' : payload
    const data = parse(await read(context, source), source)
    try {
      checkPayload(queue, data)
    } catch (error) {
      throw new Exit('usage', `${queue} does not take this payload: ${(error as Error).message}`)
    }
    const id = uuidv7()
    await withDatabase(context.env, async (database) => {
      const jobs = openJobs(database)
      try {
        await jobs.send(database.db, queue, [{ id, data, priority, delayMs: delay * 1000 }])
      } finally {
        await jobs.close()
      }
    })
    context.say(json ? JSON.stringify({ id, queue }, null, 2) : `sent ${id} to ${queue}`)
  },
})

async function read({ input }: Context, payload: string): Promise<string> {
  if (payload === '-') return await input()
  if (!payload.startsWith('@')) return payload
  try {
    return readFileSync(payload.slice(1), 'utf8')
  } catch (error) {
    throw new Exit('usage', `cannot read ${payload.slice(1)}: ${(error as Error).message}`)
  }
}

/** @throws Exit 2 that says where the JSON breaks */
function parse(text: string, payload: string): object {
  const from =
    payload === '-' ? 'stdin' : payload.startsWith('@') ? payload.slice(1) : 'the payload'
  if (text.trim() === '') throw new Exit('usage', `${from} is empty: it must be a JSON object`)
  let data: unknown
  try {
    data = JSON.parse(text)
  } catch (error) {
    throw new Exit('usage', `${from} is no JSON: ${whereIn(text, (error as Error).message)}`)
  }
  if (typeof data === 'object' && data !== null && !Array.isArray(data)) return data
  throw new Exit('usage', `${from} must be a JSON object: {…}`)
}

/** V8 names the position of most faults, but not of an unexpected end. */
function whereIn(text: string, message: string): string {
  if (/\(line \d+ column \d+\)/.test(message)) return message
  const lines = text.trimEnd().split('\n')
  return `${message} (line ${lines.length} column ${(lines.at(-1) ?? '').length + 1})`
}
