// A real Chromium without a window, driven over its DevTools protocol: tabs are opened, looked at, cut off from the
// network. Needs `chromium` on the PATH; ends with the test file.

import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after } from 'node:test'
import { until } from '../worker.ts'

const names = ['chromium', 'chromium-browser', 'google-chrome']
const program = names.find((name) => spawnSync(name, ['--version']).status === 0)

/** For `{ skip: withoutChromium() }`. */
export function withoutChromium(): string | false {
  if (program !== undefined) return false
  const reason = 'needs chromium on the PATH: apt-get install chromium'
  if (process.env.FLOTILLA_REFUSE_SKIPS === '1') throw new Error(reason)
  return reason
}

const ends: (() => Promise<void>)[] = []
// At the top of the file that imports this: in a hook of a suite's, it would run with the suite's.
after(async () => {
  for (const end of ends) await end()
})

export type Tab = {
  /** What an expression of the page's gives. */
  evaluate<T>(expression: string): Promise<T>
  /** Waits until the expression is true. */
  becomes(expression: string): Promise<void>
  /** With the network, or without. */
  online(is: boolean): Promise<void>
  /** What the page threw, and what of it the page's own policy refused. */
  errors: string[]
  /** What dialogs said; each is closed at once. */
  dialogs: string[]
  /** Another page in the same tab, until it is loaded. */
  goto(url: string): Promise<void>
  /** What happens next is not over before the next page is loaded. */
  leaves(act: () => Promise<unknown>): Promise<void>
  /** From the next page on. */
  view(view: View): Promise<void>
  /** A PNG of the whole page. */
  screenshot(): Promise<Buffer>
  close(): Promise<void>
}

export type View = { width?: number; height?: number; dark?: boolean; scripts?: boolean }

export type Chromium = {
  /** @param first a script that runs before the page's own */
  open(url: string, first?: string): Promise<Tab>
}

type LogEntry = { source: string; text: string }
type Reply = { id?: number; method?: string; params?: Record<string, never>; result?: never }

export async function startChromium(): Promise<Chromium> {
  const dir = mkdtempSync(join(tmpdir(), 'flotilla-chromium-'))
  const child = spawn(
    program!,
    [
      '--headless=new',
      '--no-sandbox',
      '--disable-gpu',
      '--disable-dev-shm-usage',
      '--no-first-run',
      '--remote-debugging-port=0',
      '--remote-allow-origins=*',
      `--user-data-dir=${dir}`,
      'about:blank',
    ],
    { stdio: ['ignore', 'ignore', 'pipe'], detached: true },
  )
  const end = () => {
    try {
      // Its helpers too.
      process.kill(-child.pid!, 'SIGKILL')
    } catch {}
  }
  process.once('exit', end)
  ends.push(async () => {
    const gone = once(child, 'exit')
    end()
    await gone
    rmSync(dir, { recursive: true, force: true, maxRetries: 10 })
  })
  const address = new URL(await saidAddress(child))

  return {
    async open(url, first) {
      const made = await fetch(`http://${address.host}/json/new?about:blank`, { method: 'PUT' })
      const target = (await made.json()) as { id: string; webSocketDebuggerUrl: string }
      const tab = await attach(target.webSocketDebuggerUrl)
      if (first) await tab.send('Page.addScriptToEvaluateOnNewDocument', { source: first })
      await tab.goto(url)
      return {
        ...tab,
        async close() {
          await fetch(`http://${address.host}/json/close/${target.id}`)
        },
      }
    },
  }
}

async function saidAddress(child: ChildProcess): Promise<string> {
  let said = ''
  child.stderr!.on('data', (chunk) => {
    said += chunk
  })
  const found = () => /DevTools listening on (ws:\S+)/.exec(said)?.[1]
  await until(() => found() !== undefined)
  return found()!
}

async function attach(url: string) {
  const socket = new WebSocket(url)
  await once(socket, 'open')
  const waiting = new Map<number, (result: unknown) => void>()
  const errors: string[] = []
  const dialogs: string[] = []
  let loads = 0
  let last = 0
  socket.addEventListener('message', ({ data }) => {
    const { id, method, params, result } = JSON.parse(data) as Reply
    if (id !== undefined) waiting.get(id)?.(result)
    else if (method === 'Runtime.exceptionThrown') errors.push(JSON.stringify(params))
    else if (method === 'Page.loadEventFired') loads++
    else if (method === 'Page.javascriptDialogOpening') {
      dialogs.push(JSON.stringify(params))
      send('Page.handleJavaScriptDialog', { accept: false })
    } else if (method === 'Log.entryAdded') {
      const { source, text } = (params as unknown as { entry: LogEntry }).entry
      if (source === 'security') errors.push(text)
    }
  })
  const send = <T>(method: string, params: object = {}) => {
    const id = ++last
    socket.send(JSON.stringify({ id, method, params }))
    return new Promise<T>((resolve) => waiting.set(id, resolve as (result: unknown) => void))
  }
  await send('Page.enable')
  await send('Runtime.enable')
  await send('Network.enable')
  await send('Log.enable')

  async function evaluate<T>(expression: string): Promise<T> {
    const given = { expression, returnByValue: true, awaitPromise: true }
    const { result } = await send<{ result: { value: T } }>('Runtime.evaluate', given)
    return result?.value
  }
  async function leaves(act: () => Promise<unknown>): Promise<void> {
    const before = loads
    await act()
    await until(() => loads > before)
  }
  return {
    send,
    evaluate,
    leaves,
    goto: (url: string) => leaves(() => send('Page.navigate', { url })),
    async view({ width = 1280, height = 900, dark = false, scripts = true }: View) {
      const size = { width, height, deviceScaleFactor: 1, mobile: width < 600 }
      await send('Emulation.setDeviceMetricsOverride', size)
      const features = [{ name: 'prefers-color-scheme', value: dark ? 'dark' : 'light' }]
      await send('Emulation.setEmulatedMedia', { features })
      await send('Emulation.setScriptExecutionDisabled', { value: !scripts })
    },
    async screenshot() {
      const given = { format: 'png', captureBeyondViewport: true }
      const { data } = await send<{ data: string }>('Page.captureScreenshot', given)
      return Buffer.from(data, 'base64')
    },
    becomes: (expression: string) => until(() => evaluate<boolean>(`Boolean(${expression})`)),
    async online(is: boolean) {
      const speed = { latency: 0, downloadThroughput: -1, uploadThroughput: -1 }
      await send('Network.emulateNetworkConditions', { offline: !is, ...speed })
    },
    errors,
    dialogs,
  }
}
