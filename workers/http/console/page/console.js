// Makes the console live: asks for the part of the page that changes every few seconds, and changes what is different and
// nothing else, so that focus, what is open and what is ticked stay. Says when what is shown is old. Without this script the
// console shows and does the same, and is loaded again by hand.

const everyMs = 4000
const slowestMs = 30_000
const live = document.getElementById('live')
const state = document.getElementById('state')
const asOf = document.getElementById('asof')
let waitMs = everyMs
let timer

function say(word, text) {
  const status = document.getElementById('status')
  // Told once to those who listen: a change of state, not each look.
  if (status.dataset.state === word) return
  status.dataset.state = word
  state.textContent = text
}

async function look() {
  clearTimeout(timer)
  if (document.hidden) return
  try {
    const answer = await fetch(location.href, {
      headers: { 'x-console-part': 'live' },
      redirect: 'error',
      signal: AbortSignal.timeout(15_000),
    })
    if (answer.status === 401) {
      say('out', 'Signed out: load the page to sign in. As of')
      return
    }
    if (!answer.ok) throw new Error(String(answer.status))
    show(await answer.text())
    waitMs = everyMs
    say('live', 'Live, as of')
  } catch {
    waitMs = Math.min(waitMs * 2, slowestMs)
    say('old', navigator.onLine ? 'No answer, trying again. As of' : 'Offline. As of')
  }
  timer = setTimeout(look, waitMs)
}

function show(text) {
  const fresh = new DOMParser().parseFromString(`<div>${text}</div>`, 'text/html').body.firstChild
  morphChildren(live, fresh)
  const now = new Date().toISOString()
  asOf.dateTime = now
  asOf.textContent = `${now.slice(11, 19)} UTC`
}

const keyOf = (node) => node.nodeType === Node.ELEMENT_NODE && node.dataset.key

function morphChildren(from, to) {
  const keyed = new Map()
  for (const child of from.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child)
  let at = from.firstChild
  for (const next of [...to.childNodes]) {
    const key = keyOf(next)
    const same = key ? keyed.get(key) : at
    if (same && same.nodeName === next.nodeName && (key || !keyOf(same))) {
      if (same === at) at = at.nextSibling
      else from.insertBefore(same, at)
      morph(same, next)
    } else from.insertBefore(next, at)
  }
  while (at) {
    const gone = at
    at = at.nextSibling
    gone.remove()
  }
}

function morph(from, to) {
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue
    return
  }
  for (const { name, value } of [...to.attributes]) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value)
  }
  for (const { name } of [...from.attributes]) {
    // Whether something is unfolded is the reader's.
    if (!to.hasAttribute(name) && name !== 'open') from.removeAttribute(name)
  }
  morphChildren(from, to)
}

// One box ticks all of the page.
function addChooseAll() {
  const boxes = [...document.querySelectorAll('input[type=checkbox][name=id]')]
  const head = boxes[0]?.closest('table').querySelector('th')
  if (!head) return
  const all = document.createElement('input')
  all.type = 'checkbox'
  all.ariaLabel = 'Choose all of this page'
  const tell = () => {
    const many = boxes.filter((box) => box.checked).length
    all.checked = many === boxes.length
    all.indeterminate = many > 0 && many < boxes.length
  }
  all.addEventListener('change', () => {
    for (const box of boxes) box.checked = all.checked
  })
  for (const box of boxes) box.addEventListener('change', tell)
  head.replaceChildren(all)
  tell()
}

addChooseAll()
if (live?.dataset.live === 'yes') {
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden) look()
  })
  addEventListener('online', look)
  addEventListener('offline', () => say('old', 'Offline. As of'))
  timer = setTimeout(look, everyMs)
}
