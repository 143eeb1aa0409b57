// Jobs made by internal programs: of any queue, checked as its worker would; and how one stands, without what it brings.

import type { FastifyInstance } from 'fastify'
import { v7 as uuidv7 } from 'uuid'
import { findJobs, type JobDetail } from '../../../db/operate.ts'
import type { Db } from '../../../db/schema.ts'
import { AppError } from '../../../domain/errors.ts'
import { checkPayload } from '../../../domain/payloads.ts'
import { type Queue, queueOf, queues } from '../../../domain/queues.ts'
import { redact } from '../../../domain/redact.ts'
import { json } from '../../problem.ts'
import { invalid } from '../../validation.ts'
import type { Guard } from '../guard.ts'
import { job, jobAccepted, jobParams, type NewJobBody, newJob, queueParams } from '../schemas.ts'

export function addJobRoutes(api: FastifyInstance, guard: Guard, { db }: { db: Db }): void {
  api.post('/jobs/:queue', {
    attachValidation: true,
    config: { access: 'internal', keyed: true, problems: ['QUEUE_NOT_FOUND'] },
    schema: {
      tags: ['jobs'],
      summary: 'Makes a job of a queue',
      description: `The queues: ${queues.map(({ name, purpose }) => `\`${name}\` (${purpose})`).join('; ')}. \`data\` must be what the worker of the queue takes, which is checked here. With \`job_id\` the job is made once however often it is asked for, as long as its queue knows it: a day after it has finished.`,
      params: queueParams,
      body: newJob,
      response: { 202: { description: 'It is in the queue', ...jobAccepted } },
    },
    handler: guard.write((request) => {
      const { queue: name } = request.params as { queue: string }
      const queue = knownQueue(name)
      const { data, job_id, priority = 0, start_after } = request.body as NewJobBody
      checkData(queue, data)
      return {
        name: 'enqueueJob',
        queue: queue.name,
        job: {
          id: job_id?.toLowerCase() ?? uuidv7(),
          data,
          priority,
          ...(start_after !== undefined && { startAfter: timeOf(start_after) }),
        },
        requestId: request.id,
      }
    }),
  })

  api.get('/jobs/:queue/:id', {
    attachValidation: true,
    config: {
      access: 'internal',
      notFound: 'JOB_NOT_FOUND',
      problems: ['QUEUE_NOT_FOUND', 'JOB_NOT_FOUND'],
    },
    schema: {
      tags: ['jobs'],
      summary: 'Shows how a job stands',
      params: jobParams,
      response: { 200: { description: 'The job', ...job } },
    },
    handler: guard.read(async (request) => {
      const { queue: name, id } = request.params as { queue: string; id: string }
      const queue = knownQueue(name)
      const found = (await findJobs(db, id)).find((one) => one.queue === queue.name)
      if (found === undefined) {
        const text = `${queue.name} has no job ${id}: finished ones are kept for a day, if at all`
        throw new AppError('JOB_NOT_FOUND', text)
      }
      return json(200, toBody(found))
    }),
  })
}

function toBody(found: JobDetail) {
  const { id, queue, state, attempts, attempts_max, created_at, due_at } = found
  const { finished_at, error } = found
  return {
    job_id: id,
    queue,
    state,
    attempts,
    attempts_max,
    created_at,
    due_at,
    ...(finished_at && { finished_at }),
    ...(error && { error: redact(error) }),
  }
}

/** @throws AppError QUEUE_NOT_FOUND that lists the known */
function knownQueue(name: string): Queue {
  const queue = queueOf(name)
  if (queue) return queue
  const known = queues.map((one) => one.name).join(', ')
  const of = name.endsWith('.dead') && queueOf(name.slice(0, -'.dead'.length))
  throw new AppError(
    'QUEUE_NOT_FOUND',
    of
      ? `a dead letter queue takes no jobs: send them to ${of.name}; the queues are ${known}`
      : `there is no queue ${JSON.stringify(redact(name.slice(0, 80)))}; the queues are ${known}`,
  )
}

/** @throws AppError VALIDATION_FAILED: what is wrong and what is right; no values of it */
function checkData(queue: Queue, data: object): void {
  try {
    checkPayload(queue.name, data)
  } catch (error) {
    const message = `is not what ${queue.name} takes: ${redact((error as Error).message)}`
    throw invalid([{ path: '/data', message }])
  }
}

/** Postgres knows no year 0. */
const earliestMs = Date.parse('0001-01-01T00:00:00Z')

/** @throws AppError VALIDATION_FAILED: a leap second has the form of a time */
function timeOf(text: string): string {
  const ms = Date.parse(text)
  if (ms >= earliestMs) return new Date(ms).toISOString()
  throw invalid([{ path: '/start_after', message: 'must be a time that exists' }])
}
