// Who is let in: mock users, bearer tokens of a real small issuer, the internal secret; and who may do what.

import assert from 'node:assert/strict'
import { generateKeyPairSync, type KeyObject } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import { after, before, describe, test } from 'node:test'
import { exportJWK, type JWTPayload, SignJWT } from 'jose'
import { openAuth } from '../workers/auth.ts'
import { ConfigError } from '../workers/config.ts'
import { readHttpConfig } from '../workers/http/config.ts'
import { type Api, internalSecret, openApi } from './api.ts'
import { type TestDatabase, testDatabase } from './database.ts'

const audience = 'tickets'
const issuer = 'https://id.example'
const rsa = generateKeyPairSync('rsa', { modulusLength: 2048 })
const stranger = generateKeyPairSync('rsa', { modulusLength: 2048 })
const elliptic = generateKeyPairSync('ec', { namedCurve: 'P-256' })
const pem = rsa.publicKey.export({ type: 'spki', format: 'pem' }).toString()

type Claims = JWTPayload & { in?: number }

function sign(claims: Claims = {}, key: KeyObject = rsa.privateKey, alg = 'RS256', kid?: string) {
  const { in: expiresIn = 60, ...payload } = { sub: 'ann', aud: audience, iss: issuer, ...claims }
  const exp = Math.floor(Date.now() / 1000) + expiresIn
  return new SignJWT({ exp, ...payload })
    .setProtectedHeader({ alg, ...(kid !== undefined && { kid }) })
    .sign(key)
}

const jwtAuth = (keys: { pem?: string; url?: string }) =>
  openAuth({
    AUTH_MODE: 'jwt',
    JWT_AUDIENCE: audience,
    JWT_ISSUER: issuer,
    JWT_PUBLIC_KEY: keys.pem,
    JWT_JWKS_URL: keys.url,
    INTERNAL_AUTH_SECRET: internalSecret,
  })

const bearer = (token: string) => ({ authorization: `Bearer ${token}` })

let database: TestDatabase
let api: Api

before(async () => {
  database = await testDatabase()
  api = await openApi(database.database)
})
after(() => api.close())

describe('mock mode', () => {
  test('believes a user id that is well formed', async () => {
    const id = 'a'.repeat(128)
    const answer = await api.call('PUT', `users/${id}`, { user: id, body: {} })
    assert.equal(answer.status, 200, answer.text)
  })

  test('refuses other ids, and asks for one that is missing', async () => {
    for (const user of ['', 'a b', 'a'.repeat(129), 'a/b', 'ü']) {
      const answer = await api.call('POST', 'reservations', { user, body: {} })
      assert.deepEqual([answer.status, answer.json.code], [401, 'UNAUTHENTICATED'], user)
    }
    const nobody = await api.call('POST', 'reservations', { body: {}, key: false })
    assert.deepEqual([nobody.status, nobody.json.code], [401, 'UNAUTHENTICATED'])
    assert.equal(nobody.headers['www-authenticate'], 'Mock realm="flotilla"')
  })
})

describe('an internal route', () => {
  const event = {
    name: 'x',
    starts_at: '2030-01-01T00:00:00Z',
    sections: [{ name: 'A', capacity: 5, price_minor: 1, currency: 'EUR' }],
  }

  test('is for those who know the secret', async () => {
    const known = await api.call('POST', 'events', { internal: true, body: event })
    assert.equal(known.status, 201, known.text)
    const nobody = await api.call('POST', 'events', { body: event })
    assert.deepEqual([nobody.status, nobody.json.code], [401, 'UNAUTHENTICATED'])
    const user = await api.call('POST', 'events', { user: 'ann', body: event })
    assert.deepEqual([user.status, user.json.code], [403, 'FORBIDDEN'])
  })

  test('a wrong secret is refused everywhere, whoever else is named', async () => {
    for (const secret of [
      '',
      'wrong',
      `${internalSecret} `.trimEnd().slice(1),
      internalSecret.toUpperCase(),
    ]) {
      const headers = { 'x-internal-auth': secret }
      const answer = await api.call('POST', 'events', { user: 'ann', body: event, headers })
      assert.deepEqual([answer.status, answer.json.code], [401, 'UNAUTHENTICATED'], secret)
    }
  })
})

describe('a user’s data', () => {
  test('is set by the user or an internal program, by nobody else', async () => {
    const body = { email: 'ann@example.org', locale: 'pt-BR', devices: [{ token: 't1' }] }
    const own = await api.call('PUT', 'users/ann', { user: 'ann', body })
    assert.equal(own.status, 200, own.text)
    const other = await api.call('PUT', 'users/ann', { user: 'bob', body })
    assert.deepEqual([other.status, other.json.code], [403, 'FORBIDDEN'])
    const internal = await api.call('PUT', 'users/carl', { internal: true, body })
    assert.equal(internal.status, 200, internal.text)
    const rows = await database.db
      .selectFrom('users')
      .select(['id', 'email', 'locale'])
      .where('id', 'in', ['ann', 'carl'])
      .orderBy('id')
      .execute()
    assert.deepEqual(
      rows,
      ['ann', 'carl'].map((id) => ({ id, email: 'ann@example.org', locale: 'pt-BR' })),
    )
  })

  test('is checked', async () => {
    const bad: [object, string][] = [
      [{ email: 'ann' }, '/email'],
      [{ locale: 'english please' }, '/locale'],
      [{ devices: [{ token: 'a', fid: 'b' }] }, '/devices/0'],
      [{ devices: [{}] }, '/devices/0'],
      [{ name: 'Ann' }, '/name'],
    ]
    for (const [body, path] of bad) {
      const answer = await api.call('PUT', 'users/ann', { user: 'ann', body })
      assert.deepEqual([answer.status, answer.json.errors?.[0].path], [400, path], answer.text)
    }
  })
})

describe('jwt mode', () => {
  let withKey: Api
  before(async () => {
    withKey = await openApi(database.database, { auth: await jwtAuth({ pem }) })
  })
  after(() => withKey.close())

  const put = (headers: Record<string, string>, on = withKey) =>
    on.call('PUT', 'users/ann', { body: {}, headers })

  test('lets in whom the issuer names', async () => {
    const answer = await put(bearer(await sign()))
    assert.equal(answer.status, 200, answer.text)
    const listed = await put(bearer(await sign({ aud: ['other', audience] })))
    assert.equal(listed.status, 200)
    const bob = await put(bearer(await sign({ sub: 'bob' })))
    assert.equal(bob.status, 403)
  })

  test('does not believe X-Mock-User-Id', async () => {
    const answer = await put({ 'x-mock-user-id': 'ann' })
    assert.deepEqual(
      [answer.status, answer.headers['www-authenticate']],
      [401, 'Bearer realm="flotilla"'],
    )
  })

  test('refuses every token that is not whole, ours and of now', async () => {
    const good = await sign()
    const [head, body, signature] = good.split('.') as [string, string, string]
    const none = Buffer.from('{"alg":"none"}').toString('base64url')
    const shared = await new SignJWT({ sub: 'ann', aud: audience, iss: issuer })
      .setProtectedHeader({ alg: 'HS256' })
      .setExpirationTime('1m')
      .sign(Buffer.from(pem))
    const forged = Buffer.from('{"sub":"bob"}').toString('base64url')
    const bad: Record<string, string> = {
      'another key': await sign({}, stranger.privateKey),
      'another kind of key': await sign({}, elliptic.privateKey, 'ES256'),
      'the public key as a shared secret': shared,
      'no signature': `${none}.${body}.`,
      'another body': `${head}.${forged}.${signature}`,
      expired: await sign({ in: -60 }),
      'not valid yet': await sign({ nbf: Math.floor(Date.now() / 1000) + 600 }),
      'no end': await sign({ exp: undefined }),
      'another audience': await sign({ aud: 'other' }),
      'no audience': await sign({ aud: undefined }),
      'another issuer': await sign({ iss: 'https://evil.example' }),
      'no issuer': await sign({ iss: undefined }),
      'no subject': await sign({ sub: undefined }),
      'a subject with a space': await sign({ sub: 'a b' }),
      'an endless subject': await sign({ sub: 'a'.repeat(256) }),
      'no token': 'x',
    }
    for (const [name, token] of Object.entries(bad)) {
      const answer = await put(bearer(token))
      assert.deepEqual([answer.status, answer.json.code], [401, 'UNAUTHENTICATED'], name)
      assert.match(String(answer.headers['www-authenticate']), /error="invalid_token"/)
      assert.ok(!answer.text.includes(token) || token === 'x', 'the token is not in the answer')
    }
    const basic = await put({ authorization: 'Basic YTpi' })
    assert.equal(basic.status, 401)
  })

  test('a clock that is a little off is forgiven', async () => {
    assert.equal((await put(bearer(await sign({ in: -2 })))).status, 200)
  })

  test('internal programs need no token', async () => {
    const answer = await withKey.call('PUT', 'users/ann', { internal: true, body: {} })
    assert.equal(answer.status, 200, answer.text)
  })
})

describe('the keys of an issuer', () => {
  let server: Server
  let url: string
  let fail = false

  before(async () => {
    const key = { ...(await exportJWK(rsa.publicKey)), kid: 'one', alg: 'RS256', use: 'sig' }
    server = createServer((_request, response) => {
      response.writeHead(fail ? 500 : 200, { 'content-type': 'application/json' })
      response.end(fail ? '' : JSON.stringify({ keys: [key] }))
    }).listen(0, '127.0.0.1')
    await once(server, 'listening')
    url = `http://127.0.0.1:${(server.address() as { port: number }).port}/jwks`
  })
  after(() => server.close())

  test('are fetched, and known by their kid', async () => {
    const remote = await openApi(database.database, { auth: await jwtAuth({ url }) })
    const put = async (kid: string) =>
      await remote.call('PUT', 'users/ann', {
        body: {},
        headers: bearer(await sign({}, rsa.privateKey, 'RS256', kid)),
      })
    assert.equal((await put('one')).status, 200)
    assert.deepEqual((await put('two')).status, 401)
    await remote.close()
  })

  test('that cannot be fetched are no fault of the token', async () => {
    for (const broken of ['issuer', 'address']) {
      fail = broken === 'issuer'
      const auth = await jwtAuth({ url: broken === 'issuer' ? url : 'http://127.0.0.1:1/jwks' })
      const remote = await openApi(database.database, { auth })
      const headers = bearer(await sign({}, rsa.privateKey, 'RS256', 'one'))
      const answer = await remote.call('PUT', 'users/ann', { body: {}, headers })
      assert.deepEqual([answer.status, answer.json.code], [503, 'UNAVAILABLE'], answer.text)
      await remote.close()
    }
  })
})

describe('the settings', () => {
  const base = {
    DATABASE_URL: 'postgres://localhost/x',
    INTERNAL_AUTH_SECRET: 'sixteen characters',
    CONSOLE_PASSWORD: 'sixteen characters',
  }
  const faults = (env: Record<string, string>): string[] => {
    try {
      readHttpConfig({ ...base, ...env })
      return []
    } catch (error) {
      assert.ok(error instanceof ConfigError)
      return error.faults
    }
  }

  test('mock mode is refused in production', () => {
    assert.deepEqual(faults({}), [])
    assert.match(faults({ NODE_ENV: 'production' }).join(), /AUTH_MODE mock is refused/)
  })

  test('jwt mode needs an audience, an issuer and one source of keys', () => {
    assert.equal(faults({ AUTH_MODE: 'jwt' }).length, 3)
    const both = {
      JWT_AUDIENCE: 'a',
      JWT_ISSUER: 'b',
      JWT_JWKS_URL: 'https://x',
      JWT_PUBLIC_KEY: pem,
    }
    assert.match(faults({ AUTH_MODE: 'jwt', ...both }).join(), /exactly one/)
    const oneLine = pem.trim().replaceAll('\n', '\\n')
    const { JWT_JWKS_URL: _, ...one } = { ...both, JWT_PUBLIC_KEY: oneLine }
    assert.deepEqual(faults({ NODE_ENV: 'production', AUTH_MODE: 'jwt', ...one }), [])
    assert.match(faults({ JWT_PUBLIC_KEY: 'abc' }).join(), /PEM/)
  })

  test('a missing secret is refused in production, and is never told', () => {
    const env = { NODE_ENV: 'production', AUTH_MODE: 'jwt', INTERNAL_AUTH_SECRET: 'short' }
    const said = faults(env).join()
    assert.match(said, /INTERNAL_AUTH_SECRET must have/)
    assert.doesNotMatch(said, /short/)
  })

  test('limits are numbers that every store can count to', () => {
    for (const name of ['RATE_LIMIT_USER_PER_MINUTE', 'RATE_LIMIT_GLOBAL_PER_MINUTE']) {
      assert.deepEqual(faults({ [name]: '0' }), [])
      assert.match(faults({ [name]: '3000000000' }).join(), new RegExp(`${name} must be a whole`))
    }
  })

  test('proxies are addresses or ranges', () => {
    assert.deepEqual(faults({ TRUSTED_PROXIES: '10.0.0.0/8, ::1,fd00::/8' }), [])
    assert.match(faults({ TRUSTED_PROXIES: 'everyone' }).join(), /everyone is none/)
    assert.match(faults({ TRUSTED_PROXIES: '10.0.0.0/33' }).join(), /none/)
  })
})
