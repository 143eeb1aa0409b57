// A person's place in a queue: joins, listens by WebSocket, else by an event stream, else asks from time to time, and
// says which of these it does. Tabs of one browser are one person and have one place. A place survives everything that
// breaks: the token is kept, reconnections wait longer and longer and never all at once, and a lost place is asked back.

const $ = (id) => document.getElementById(id)
const query = new URLSearchParams(location.search)
const match = query.get('match')
const isMock = document.documentElement.dataset.auth === 'mock'
const bearer = new URLSearchParams(location.hash.slice(1)).get('access_token')
const api = `/api/v1/queue/${encodeURIComponent(match ?? '')}`

const heartbeatMs = 60_000
const backoffMs = { first: 1000, most: 30_000 }
const pollMs = 10_000
/** After so many connections in a row that did not even open, the next way is tried. */
const failuresMax = 2
/** While on a lesser way, the first one is tried again so often. */
const upgradeMs = 60_000
const connectMaxMs = 10_000

const ways = ['websocket', 'stream', 'polling']
const wayNames = {
  websocket: 'Live',
  stream: 'Live, by event stream',
  polling: 'Asking every few seconds',
}
let way = 0
let failures = 0
let place
let connection
let timer
let ended = false
let windowEndsAt

/** A tab has no name of its own: all of them are this browser's person. */
function userId() {
  const given = query.get('user')
  if (given) return given
  const key = 'waitingroom.user'
  const made = `guest-${crypto.getRandomValues(new Uint32Array(2)).join('-')}`
  try {
    const kept = localStorage.getItem(key)
    if (kept) return kept
    localStorage.setItem(key, made)
    return localStorage.getItem(key)
  } catch {
    return made
  }
}
const who = isMock
  ? { 'x-mock-user-id': userId() }
  : bearer
    ? { authorization: `Bearer ${bearer}` }
    : {}
const tokenKey = `waitingroom.token.${match}.${who['x-mock-user-id'] ?? ''}`

function keepToken(token) {
  try {
    localStorage.setItem(tokenKey, token)
  } catch {}
}
function keptToken() {
  try {
    return localStorage.getItem(tokenKey) ?? undefined
  } catch {
    return undefined
  }
}

async function ask(method, path, body, headers = who) {
  const answer = await fetch(api + path, {
    method,
    headers: { ...headers, ...(body && { 'content-type': 'application/json' }) },
    ...(body && { body: JSON.stringify(body) }),
    signal: AbortSignal.timeout(connectMaxMs),
  })
  const text = await answer.text()
  const json = text ? JSON.parse(text) : {}
  if (answer.ok) return json
  const error = new Error(json.detail ?? answer.statusText)
  error.code = json.code
  error.status = answer.status
  error.reason = json.reason
  error.waitMs = Number(answer.headers.get('retry-after') ?? 0) * 1000
  throw error
}

async function join() {
  stop()
  ended = false
  state('connecting', 'Connecting…')
  try {
    const token = keptToken()
    place = await ask('POST', '/join', token ? { queue_token: token } : {})
    keepToken(place.queue_token)
    show(place)
    failures = 0
    connect()
  } catch (error) {
    if (error.code === 'QUEUE_CLOSED') return end(error.reason)
    if (error.status >= 400 && error.status < 500 && error.status !== 429) return refuse(error)
    retry(join, error.waitMs)
  }
}

/** What came over any of the ways. */
function show(told) {
  if (told.type === 'queue_closed') return end(told.reason)
  if (told.purchase_window_expires_at) return showTurn(told)
  const lobby = told.status === 'lobby'
  $('headline').textContent = lobby
    ? 'You are in the lobby'
    : told.status === 'paused'
      ? 'The line is paused; you keep your place'
      : 'Your place in the line'
  $('position').textContent = lobby ? '' : told.position.toLocaleString()
  $('estimate').textContent =
    lobby || told.estimated_wait_minutes === null
      ? ''
      : `About ${told.estimated_wait_minutes} ${told.estimated_wait_minutes === 1 ? 'minute' : 'minutes'}`
  $('explain').textContent = lobby
    ? 'When the sale opens, everybody in the lobby is put in an order drawn by lot. When you came makes no difference.'
    : 'You may close this page or lose your connection: your place is kept for 30 minutes, here and on your other devices.'
  $('leave').hidden = false
  $('again').hidden = true
  $('turn').hidden = true
  document.title = lobby ? 'Waiting room' : `${told.position} · Waiting room`
}

function showTurn(told) {
  windowEndsAt = Date.parse(told.purchase_window_expires_at)
  $('headline').textContent = 'It is your turn'
  for (const id of ['position', 'estimate', 'explain']) $(id).textContent = ''
  $('checkout').href = told.checkout_url
  $('turn').hidden = false
  document.title = 'Your turn · Waiting room'
  tick()
}

function tick() {
  if (windowEndsAt === undefined) return
  const seconds = Math.max(0, Math.round((windowEndsAt - Date.now()) / 1000))
  $('left').textContent =
    `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')} left`
}
setInterval(tick, 1000)

const reasons = {
  sold_out: 'Sold out. The line is closed.',
  window_timeout: 'Your time to buy is over.',
  used: 'You have bought. Thank you!',
  left: 'You have left the line.',
}

function end(reason) {
  if (reason === 'place_lost') return join()
  ended = true
  windowEndsAt = undefined
  stop()
  $('headline').textContent = reasons[reason] ?? 'The line is closed.'
  for (const id of ['position', 'estimate', 'explain']) $(id).textContent = ''
  $('turn').hidden = true
  $('leave').hidden = true
  $('again').hidden = reason === 'sold_out'
  document.title = 'Waiting room'
  state('ended', '')
}

function refuse(error) {
  ended = true
  stop()
  $('headline').textContent = 'You cannot stand in this line'
  $('explain').textContent = error.message
  state('ended', '')
}

function state(name, text) {
  $('connection').dataset.state = name
  $('connection').textContent = text
}

function stop() {
  clearTimeout(timer)
  connection?.close()
  connection = undefined
}

function connect() {
  stop()
  if (ended) return
  if (navigator.onLine === false) return state('offline', 'You are offline. Your place is kept.')
  if (ways[way] === 'websocket' && !('WebSocket' in window)) way++
  if (ways[way] === 'stream' && !('EventSource' in window)) way++
  if (ways[way] === 'websocket') connection = openSocket()
  else if (ways[way] === 'stream') connection = openStream()
  else connection = openPolling()
}

function live() {
  failures = 0
  state('live', wayNames[ways[way]])
}

/** A connection has ended, or never began. */
function lost(opened) {
  connection = undefined
  if (ended) return
  if (!opened && ++failures >= failuresMax && way < ways.length - 1) {
    way++
    failures = 0
  }
  retry(connect)
}

/** Half of the wait is chance: who was cut off together does not come back together. */
function retry(act, leastMs = 0) {
  clearTimeout(timer)
  if (navigator.onLine === false) return state('offline', 'You are offline. Your place is kept.')
  const most = Math.min(backoffMs.most, backoffMs.first * 2 ** failures)
  const waitMs = Math.max(leastMs, most / 2 + (Math.random() * most) / 2)
  state('waiting', 'Not connected. Your place is kept; trying again…')
  if (act === join) failures++
  timer = setTimeout(act, waitMs)
}

function openSocket() {
  const socket = new WebSocket(place.websocket_url)
  let opened = false
  let closed = false
  const late = setTimeout(() => socket.close(), connectMaxMs)
  const heartbeat = setInterval(() => {
    if (socket.readyState === WebSocket.OPEN) socket.send('{"type":"heartbeat"}')
  }, heartbeatMs)
  const over = () => {
    clearTimeout(late)
    clearInterval(heartbeat)
  }
  socket.onopen = () => {
    opened = true
    clearTimeout(late)
    live()
  }
  socket.onmessage = ({ data }) => {
    if (!closed) show(JSON.parse(data))
  }
  socket.onclose = ({ code }) => {
    over()
    if (closed) return
    // Too many tabs: this one asks from time to time instead of pushing another one out.
    if (code === 4409) way = ways.indexOf('polling')
    lost(opened)
  }
  return {
    close() {
      closed = true
      over()
      socket.close()
    },
  }
}

function openStream() {
  const stream = new EventSource(place.sse_url)
  let opened = false
  const back = upgrade()
  stream.onopen = () => {
    opened = true
    live()
  }
  for (const type of ['position_update', 'turn_granted', 'queue_closed']) {
    stream.addEventListener(type, ({ data }) => show(JSON.parse(data)))
  }
  const close = () => {
    clearTimeout(back)
    stream.close()
  }
  // The browser would come back by itself, but as quickly as everybody else.
  stream.onerror = () => {
    close()
    lost(opened)
  }
  return { close }
}

function openPolling() {
  let closed = false
  let next
  const back = upgrade()
  async function poll() {
    try {
      const told = await ask('GET', '/position', undefined, { 'x-queue-token': place.queue_token })
      if (closed) return
      place = { ...place, ...told }
      keepToken(told.queue_token)
      live()
      show(told)
    } catch (error) {
      if (closed) return
      if (error.code === 'QUEUE_CLOSED') return end(error.reason)
      if (error.status === 401 || error.status === 404) return join()
      state('waiting', 'Not connected. Your place is kept; trying again…')
    }
    if (!closed && !ended) next = setTimeout(poll, pollMs * (0.75 + Math.random() / 2))
  }
  poll()
  return {
    close() {
      closed = true
      clearTimeout(next)
      clearTimeout(back)
    },
  }
}

const upgrade = () =>
  setTimeout(() => {
    way = 0
    failures = 0
    connect()
  }, upgradeMs)

addEventListener('offline', () => {
  stop()
  if (!ended) state('offline', 'You are offline. Your place is kept.')
})
addEventListener('online', () => {
  if (ended) return
  failures = 0
  retry(place ? connect : join)
})

$('again').addEventListener('click', join)
$('leave').addEventListener('click', async () => {
  try {
    await ask('DELETE', '')
    end('left')
  } catch (error) {
    if (error.status === 404) end('left')
    else state('waiting', `That did not work: ${error.message}`)
  }
})

if (match) {
  $('place').hidden = false
  join()
} else $('choose').hidden = false
