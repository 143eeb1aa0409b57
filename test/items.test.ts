// Items over the API: written by internal programs, found by their words at once, changed and deleted with the jobs that
// follow; and what an image and a job of theirs must be.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { decodeItemJob, imageDataMax, imageFault } from '../domain/items.ts'
import {
  centreOf,
  codeBits,
  codeOf,
  fromBytes,
  innerProduct,
  normalized,
  toBytes,
} from '../domain/vectors.ts'
import { newKey, openApi } from './api.ts'
import { testDatabase } from './database.ts'
import { clusteredVectors, diceOf } from './itemRuns.ts'
import { emptyJobs, everyJob } from './jobRows.ts'

const { db, database } = await testDatabase()
const api = await openApi(database)
after(() => api.close())
beforeEach(async () => {
  await emptyJobs(db)
  await sql`delete from items`.execute(db)
})

const png = `data:image/png;base64,${Buffer.from('89504e470d0a1a0a0000000d', 'hex').toString('base64')}`
const make = async (body: object): Promise<string> => {
  const answer = await api.call('POST', 'items', { internal: true, body })
  assert.equal(answer.status, 201, answer.text)
  return answer.json.item_id
}
const find = async (query: string): Promise<string[]> => {
  const answer = await api.call('GET', `items?${query}`)
  assert.equal(answer.status, 200, answer.text)
  return answer.json.items.map(({ title }: { title: string }) => title)
}
type JobRow = { name: string; data: { type: string; item_id: string; version: string } }
const jobsOf = async (): Promise<JobRow[]> => {
  const { rows } = await sql<JobRow>`
    select name, data from ${everyJob} order by created_on, name`.execute(db)
  return rows
}

describe('an item', () => {
  test('is made with its jobs, shown, and made once for one key', async () => {
    const key = newKey()
    const body = { title: 'Opening night poster', description: 'Signed\nby all', image: png }
    const made = await api.call('POST', 'items', { internal: true, key, body })
    const again = await api.call('POST', 'items', { internal: true, key, body })
    assert.equal(made.status, 201)
    assert.equal(again.text, made.text)
    assert.equal(again.headers['idempotent-replayed'], 'true')
    const { item_id, version } = made.json
    const shown = await api.call('GET', `items/${item_id}`)
    assert.deepEqual(
      { ...shown.json, created_at: '', updated_at: '' },
      { item_id, ...body, version, embedded: false, created_at: '', updated_at: '' },
    )
    const jobs = await jobsOf()
    assert.deepEqual(
      jobs.map(({ name, data }) => [name, data.type, data.item_id, data.version]),
      [
        ['embed', 'EmbedItem', item_id, String(version)],
        ['search', 'IndexItem', item_id, String(version)],
      ],
    )
    for (const { name, data } of jobs) {
      assert.equal(
        decodeItemJob(name === 'embed' ? 'EmbedItem' : 'IndexItem')(data).item_id,
        item_id,
      )
    }
    const similar = await api.call('GET', `items/${item_id}/similar`)
    assert.deepEqual(similar.json, { items: [] })
  })

  test('is replaced as a whole, with a higher version and the same jobs', async () => {
    const id = await make({
      title: 'Poster',
      description: 'old',
      image: 'https://img.example.com/a.png',
    })
    const before = (await api.call('GET', `items/${id}`)).json
    await emptyJobs(db)
    const put = await api.call('PUT', `items/${id}`, { internal: true, body: { title: 'Print' } })
    assert.equal(put.status, 200)
    assert.ok(put.json.version > before.version)
    const now = (await api.call('GET', `items/${id}`)).json
    assert.deepEqual([now.title, now.description, now.image], ['Print', '', undefined])
    assert.deepEqual(
      (await jobsOf()).map(({ data }) => [data.type, data.version]),
      [
        ['EmbedItem', String(put.json.version)],
        ['IndexItem', String(put.json.version)],
      ],
    )
    const none = await api.call('PUT', `items/${randomUUID()}`, {
      internal: true,
      body: { title: 'x' },
    })
    assert.deepEqual([none.status, none.json.code], [404, 'ITEM_NOT_FOUND'])
  })

  test('is deleted once, found no more, and its jobs have a version above all before', async () => {
    const id = await make({ title: 'Poster' })
    const { version } = (await api.call('GET', `items/${id}`)).json
    await emptyJobs(db)
    const gone = await api.call('DELETE', `items/${id}`, { internal: true })
    assert.deepEqual([gone.status, gone.text], [204, ''])
    for (const [method, path] of [
      ['DELETE', `items/${id}`],
      ['GET', `items/${id}`],
      ['GET', `items/${id}/similar`],
      ['GET', 'items/no-id'],
    ] as const) {
      const answer = await api.call(method, path, { internal: true })
      assert.deepEqual([answer.status, answer.json.code], [404, 'ITEM_NOT_FOUND'])
    }
    assert.deepEqual(await find('q=poster'), [])
    const jobs = await jobsOf()
    assert.deepEqual(
      jobs.map(({ data }) => [data.type, Number(data.version) > version]),
      [
        ['IndexItem', true],
        ['RecomputeSimilar', true],
      ],
    )
  })

  test('is written by internal programs only', async () => {
    const id = await make({ title: 'Poster' })
    for (const [method, path] of [
      ['POST', 'items'],
      ['PUT', `items/${id}`],
      ['DELETE', `items/${id}`],
    ] as const) {
      const body = method === 'DELETE' ? undefined : { title: 'Mine' }
      const user = await api.call(method, path, { user: 'ann', body })
      assert.equal(user.status, 403)
      assert.equal((await api.call(method, path, { body })).status, 401)
    }
    assert.equal((await api.call('GET', `items/${id}`)).json.title, 'Poster')
  })

  test('may be asked for asynchronously', async () => {
    const body = { title: 'Later' }
    const answer = await api.call('POST', 'items', {
      internal: true,
      body,
      headers: { prefer: 'respond-async' },
    })
    assert.equal(answer.status, 202)
    assert.match(String(answer.headers.location), /^\/api\/v1\/commands\//)
  })

  test('is refused with what is wrong and what is right', async () => {
    const wrong: [object, RegExp][] = [
      [{}, /\/title is required/],
      [{ title: ' ' }, /\/title must be a title of 1 to 200/],
      [{ title: 'x'.repeat(201) }, /\/title must be a title of 1 to 200/],
      [{ title: 'x', description: 'a\u0000b' }, /\/description must be a text of 10000/],
      [{ title: 'x', description: 'x'.repeat(10_001) }, /\/description must be a text/],
      [{ title: 'x', image: 'http://img.example.com/a.png' }, /\/image must be an https URL/],
      [{ title: 'x', image: 'https://10.0.0.1/a.png' }, /\/image must be at a public host name/],
      [
        { title: 'x', image: 'data:image/png;base64,AAAA' },
        /\/image must hold what its media type/,
      ],
      [
        { title: 'x', image: `data:${'x'.repeat(imageDataMax)}` },
        /\/image must be an https URL, or a data/,
      ],
      [{ title: 'x', colour: 'red' }, /\/colour is not a known field; known are title/],
    ]
    for (const [body, message] of wrong) {
      const answer = await api.call('POST', 'items', { internal: true, body })
      assert.equal(answer.status, 400, JSON.stringify(body).slice(0, 80))
      assert.match(answer.json.detail, message)
    }
    assert.equal((await jobsOf()).length, 0)
  })
})

test('items are found by their words and stems, the title before the rest, in pages', async () => {
  await make({ title: 'Concert poster', description: 'A print of the evening' })
  await make({ title: 'Mug', description: 'With the poster of the concerts' })
  await make({ title: 'Žarko kapa', description: 'plava' })
  assert.deepEqual(await find('q=poster'), ['Concert poster', 'Mug'])
  assert.deepEqual(await find('q=concert'), ['Concert poster', 'Mug'])
  assert.deepEqual(await find('q=posters%20-mug'), ['Concert poster'])
  assert.deepEqual(await find('q=%22of%20the%20evening%22'), ['Concert poster'])
  assert.deepEqual(await find(`q=${encodeURIComponent('žarko')}`), ['Žarko kapa'])
  assert.deepEqual(await find('q=zarko%20PLAVA'), ['Žarko kapa'])
  assert.deepEqual(await find('q=mug%20or%20kapa').then((all) => all.sort()), ['Mug', 'Žarko kapa'])
  assert.deepEqual(await find('q=poster&limit=1&offset=1'), ['Mug'])
  assert.deepEqual(await find("q=%3B')%20%26%20%7C!%3A*"), [])
  for (const [query, message] of [
    ['', /\/q is required/],
    ['q=%20', /\/q must be words to look for/],
    ['q=x&limit=51', /\/limit must be a whole number from 1 to 50/],
    ['q=x&page=2', /\/page is not a known field; known are q, limit, offset/],
  ] as const) {
    const answer = await api.call('GET', `items?${query}`)
    assert.equal(answer.status, 400)
    assert.match(answer.json.detail, message)
  }
})

test('an image in a list is only told when it is a URL', async () => {
  await make({ title: 'One print', image: png })
  await make({ title: 'Two print', image: 'https://img.example.com/a.png' })
  const { items } = (await api.call('GET', 'items?q=print')).json
  const images = items.map(({ title, image }: { title: string; image?: string }) => [title, image])
  assert.deepEqual(images.sort(), [
    ['One print', undefined],
    ['Two print', 'https://img.example.com/a.png'],
  ])
})

test('an image is a public https URL, or what its media type says', () => {
  const good = [png, 'https://img.example.com/a.png?x=1', 'https://x.example.co.uk:8443/a']
  for (const image of good) assert.equal(imageFault(image), undefined, image)
  for (const image of [
    'ftp://img.example.com/a',
    'https://user:hush@img.example.com/a',
    'https://localhost/a',
    'https://metadata.google.internal/a',
    'https://169.254.169.254/latest',
    'https://[::1]/a',
    'https://0x7f000001/a',
    'https://printer/a',
    'javascript:alert(1)',
    'data:text/html;base64,PGI+',
    'data:image/svg+xml;base64,PHN2Zz4=',
    `${png}=`,
  ]) {
    assert.ok(imageFault(image), image)
  }
})

test('a job of an item is refused with what is wrong', () => {
  const good = { type: 'EmbedItem', item_id: randomUUID(), version: '12' }
  assert.deepEqual(decodeItemJob('EmbedItem')(good), good)
  for (const [data, message] of [
    [null, /type must be EmbedItem/],
    [{ ...good, type: 'IndexItem' }, /type must be EmbedItem/],
    [{ ...good, item_id: 'x' }, /item_id must be a UUID/],
    [{ ...good, version: 12 }, /version must be a whole number, as text/],
  ] as const) {
    assert.throws(() => decodeItemJob('EmbedItem')(data), message)
  }
})

describe('vectors', () => {
  const random = diceOf(7)
  const bits = (hex: string) => BigInt(`0x${hex}`).toString(2).padStart(codeBits, '0')
  const differing = (a: string, b: string) => {
    const [x, y] = [bits(a), bits(b)]
    return [...x].filter((bit, i) => bit !== y[i]).length
  }

  test('keep their numbers as bytes, also at an odd place', () => {
    const vector = normalized([3, 0, -4])
    assert.deepEqual([...vector], [Math.fround(0.6), 0, Math.fround(-0.8)])
    const odd = Buffer.concat([Buffer.from([0]), toBytes(vector)]).subarray(1)
    assert.deepEqual(fromBytes(odd), vector)
    assert.throws(() => normalized([0, 0]), /not all 0/)
    assert.throws(() => normalized([Number.NaN, 1]), /finite/)
  })

  for (const dimensions of [64, 700, 1536, 3072]) {
    test(`of ${dimensions} dimensions differ in as many bits as their angle says`, () => {
      const direction = () => normalized(Array.from({ length: dimensions }, () => random() - 0.5))
      for (let i = 0; i < 20; i++) {
        const [a, b] = [direction(), direction()]
        const near = normalized(a.map((x, j) => x + (i / 20) * (b[j] as number)))
        const angle = Math.acos(Math.min(1, innerProduct(a, near)))
        const expected = (codeBits * angle) / Math.PI
        const found = differing(codeOf(a, undefined), codeOf(near, undefined))
        // Five deviations.
        assert.ok(Math.abs(found - expected) < 115, `${found} bits for ${expected}`)
      }
    })
  }

  test('in a narrow cone are told apart once the centre is taken off', () => {
    const vectors = clusteredVectors(60, 256, 6)
    const centre = centreOf(vectors)
    const spread = (of: Float32Array | undefined) =>
      differing(codeOf(vectors[0] as Float32Array, of), codeOf(vectors[1] as Float32Array, of)) -
      differing(codeOf(vectors[0] as Float32Array, of), codeOf(vectors[6] as Float32Array, of))
    assert.ok(spread(centre) > spread(undefined))
  })
})
