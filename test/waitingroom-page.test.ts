// The page of the waiting room in a real Chromium: several tabs, lost networks, WebSockets that are blocked, a server
// that goes away and comes back.

import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { sql } from 'kysely'
import { type TestDatabase, testDatabase } from './database.ts'
import { type Chromium, startChromium, type Tab, withoutChromium } from './servers/chromium.ts'
import { makeMatch, openAtOnce, startWaitingroom, type TestWaitingroom } from './waitingrooms.ts'
import { until } from './worker.ts'

describe('the page', { skip: withoutChromium() }, () => {
  let database: TestDatabase
  let room: TestWaitingroom
  let chromium: Chromium
  before(async () => {
    database = await testDatabase()
    room = await startWaitingroom(database.db)
    chromium = await startChromium()
  })
  after(() => room.kill())

  const match = async (given = {}) => {
    const matchId = await makeMatch(database.db, { rate: 0, ...given })
    await openAtOnce(database.db, room.store, matchId)
    return matchId
  }
  const open = (matchId: string, user?: string, first?: string) =>
    chromium.open(
      `${room.base}/demo/waitingroom?match=${matchId}${user ? `&user=${user}` : ''}`,
      first,
    )
  const shows = (tab: Tab, position: number) =>
    tab.becomes(`document.getElementById('position').textContent === '${position}'`)
  const isIn = (tab: Tab, state: string, text = '') =>
    tab.becomes(
      `document.getElementById('connection').dataset.state === '${state}' &&
       document.getElementById('connection').textContent.includes('${text}')`,
    )
  const says = (tab: Tab, words: string) =>
    tab.becomes(`document.getElementById('headline').textContent.includes('${words}')`)

  test('shows one place in all tabs of a person, and each move of it', async () => {
    const matchId = await match()
    await room.call('POST', `${matchId}/join`, { user: 'first' })
    const [one, two] = [await open(matchId), await open(matchId)]
    for (const tab of [one, two]) {
      await isIn(tab, 'live', 'Live')
      await shows(tab, 2)
    }
    const other = await open(matchId, 'other')
    await shows(other, 3)
    await room.call('DELETE', matchId, { user: 'first' })
    for (const tab of [one, two]) await shows(tab, 1)
    await shows(other, 2)
    await one.evaluate(`document.getElementById('leave').click()`)
    await says(one, 'left the line')
    await shows(other, 1)
    for (const tab of [one, two, other]) {
      assert.deepEqual(tab.errors, [])
      await tab.close()
    }
  })

  test('leads to the checkout when it is the person’s turn, and says when that is over', async () => {
    const matchId = await match()
    const tab = await open(matchId, 'ann')
    await shows(tab, 1)
    await room.call('POST', `${matchId}/rate`, { internal: true, body: { rate: 60_000 } })
    await says(tab, 'your turn')
    const href = await tab.evaluate<string>(`document.getElementById('checkout').href`)
    assert.equal(new URL(href).searchParams.get('match_id'), matchId)
    await tab.becomes(
      `/^(20:00|19:\\d\\d) left$/.test(document.getElementById('left').textContent)`,
    )
    await sql`update turns set expires_at = clock_timestamp()`.execute(database.db)
    await says(tab, 'time to buy is over')
    await tab.close()
  })

  test('says that it is offline, and takes its place up again', async () => {
    const matchId = await match()
    for (const user of ['a', 'b']) await room.call('POST', `${matchId}/join`, { user })
    const tab = await open(matchId, 'ann')
    await shows(tab, 3)
    await tab.online(false)
    await isIn(tab, 'offline', 'offline')
    await room.call('DELETE', matchId, { user: 'a' })
    await tab.online(true)
    await isIn(tab, 'live', 'Live')
    await shows(tab, 2)
    assert.deepEqual(tab.errors, [])
    await tab.close()
  })

  test('falls back to an event stream, and from there to polling', async () => {
    const matchId = await match()
    const noSockets =
      'window.WebSocket = class { constructor() { setTimeout(() => this.onclose({ code: 1006 })) } close() {} }'
    const streaming = await open(matchId, 'ann', noSockets)
    await isIn(streaming, 'live', 'event stream')
    await shows(streaming, 1)
    const polling = await open(matchId, 'bob', `${noSockets}; delete window.EventSource`)
    await isIn(polling, 'live', 'Asking')
    await shows(polling, 2)
    await room.call('POST', `${matchId}/sold-out`, { internal: true, body: {} })
    await says(streaming, 'Sold out')
    await says(polling, 'Sold out')
    for (const tab of [streaming, polling]) {
      assert.deepEqual(tab.errors, [])
      await tab.close()
    }
  })

  test('comes back by itself, with its place, when the server was away', async () => {
    const matchId = await match()
    const { port } = new URL(room.base)
    await room.call('POST', `${matchId}/join`, { user: 'first' })
    const tab = await open(matchId, 'ann')
    await shows(tab, 2)
    await room.kill()
    await isIn(tab, 'waiting', 'trying again')
    room = await startWaitingroom(database.db, { WAITINGROOM_PORT: port })
    await isIn(tab, 'live')
    await room.call('DELETE', matchId, { user: 'first' })
    await shows(tab, 1)
    assert.deepEqual(tab.errors, [])
    await tab.close()
  })

  test('tells people in the lobby what will happen, and then where they stand', async () => {
    const matchId = await makeMatch(database.db, { rate: 0 })
    const tab = await open(matchId, 'ann')
    await says(tab, 'in the lobby')
    await tab.becomes(`document.getElementById('explain').textContent.includes('drawn by lot')`)
    await room.call('POST', `${matchId}/open`, { internal: true })
    await shows(tab, 1)
    await tab.close()
  })

  test('asks for a match where none is named, and says why one cannot be stood in line for', async () => {
    const empty = await chromium.open(`${room.base}/demo/waitingroom`)
    await empty.becomes(`!document.getElementById('choose').hidden`)
    await empty.evaluate(`document.getElementById('match').value = 'here';
      document.getElementById('choose').requestSubmit()`)
    await empty.becomes(`location.search === '?match=here'`)
    await empty.close()
    const tab = await open('018f0000-0000-7000-8000-000000000000', 'ann')
    await says(tab, 'cannot stand')
    await until(async () =>
      (await tab.evaluate<string>(`document.getElementById('explain').textContent`)).includes(
        'there is no event',
      ),
    )
    await tab.close()
  })
})
