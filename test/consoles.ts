// What tests of the console begin with: somebody who visits it as a browser would, with a cookie and the token of its
// forms, without one.

import type { FastifyInstance } from 'fastify'
import { consolePassword } from './api.ts'

export type Seen = {
  status: number
  headers: Record<string, string | string[] | number | undefined>
  text: string
  /** Where a redirect leads. */
  to: string
}

export type Visitor = {
  get(path?: string, headers?: Record<string, string>): Promise<Seen>
  /** With the token of the visitor's session, unless `fields` has one. */
  post(path: string, fields: Fields, headers?: Record<string, string>): Promise<Seen>
  signIn(password?: string): Promise<Seen>
  cookie: string
}
type Fields = Record<string, string | readonly string[]>

const origin = { host: 'console.test', origin: 'http://console.test' }

export function visitor(app: FastifyInstance, address = '127.0.0.1'): Visitor {
  let csrf = ''
  async function call(
    method: 'GET' | 'POST',
    path: string,
    headers: Record<string, string>,
    payload?: string,
  ): Promise<Seen> {
    const answer = await app.inject({
      method,
      url: `/console${path && `/${path}`}`,
      remoteAddress: address,
      headers: { host: origin.host, ...(self.cookie && { cookie: self.cookie }), ...headers },
      ...(payload !== undefined && { payload }),
    })
    const set = answer.headers['set-cookie']
    if (typeof set === 'string') self.cookie = set.split(';')[0] as string
    csrf = tokenIn(answer.body) ?? csrf
    const { statusCode: status, body: text } = answer
    return { status, headers: answer.headers, text, to: String(answer.headers.location ?? '') }
  }
  const self: Visitor = {
    cookie: '',
    get: (path = '', headers = {}) => call('GET', path, headers),
    post(path, fields, headers = {}) {
      const form = new URLSearchParams({ csrf })
      for (const [name, value] of Object.entries(fields)) {
        form.delete(name)
        for (const one of [value].flat()) form.append(name, one as string)
      }
      const type = { 'content-type': 'application/x-www-form-urlencoded' }
      return call('POST', path, { ...type, origin: origin.origin, ...headers }, form.toString())
    },
    async signIn(password = consolePassword) {
      const seen = await self.post('login', { password })
      if (seen.status === 303) await self.get()
      return seen
    },
  }
  return self
}

const tokenIn = (text: string): string | undefined => /name="csrf" value="([^"]+)"/.exec(text)?.[1]

/** The page behind a redirect. */
export async function follow(who: Visitor, { to }: Seen): Promise<Seen> {
  return await who.get(to.replace(/^\/console\/?/, ''))
}
