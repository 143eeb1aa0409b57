// The page at /demo/waitingroom: a person can stand in the queue of a match there. One file, no build step, no framework;
// the script is a file of its own so that the page allows no other.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { FastifyInstance } from 'fastify'
import type { ServerParts } from './server.ts'

const folder = join(import.meta.dirname, 'page')
const files = {
  '/demo/waitingroom': ['page.html', 'text/html; charset=utf-8'],
  '/demo/waitingroom.js': ['page.js', 'text/javascript; charset=utf-8'],
  '/demo/waitingroom.css': ['page.css', 'text/css; charset=utf-8'],
} as const

const policy =
  "default-src 'none'; script-src 'self'; style-src 'self'; connect-src *; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"

export function addPage(app: FastifyInstance, { config }: ServerParts): void {
  for (const [path, [file, type]] of Object.entries(files)) {
    const body = readFileSync(join(folder, file), 'utf8').replace('{{auth}}', config.AUTH_MODE)
    app.get(path, (_request, reply) =>
      reply
        .headers({
          'content-type': type,
          'content-security-policy': policy,
          'referrer-policy': 'no-referrer',
        })
        .send(body),
    )
  }
}
