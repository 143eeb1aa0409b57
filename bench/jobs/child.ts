// A contender's process as the bench sees it: started, asked by IPC, ended.

import { fork } from 'node:child_process'
import { once } from 'node:events'
import type { Call } from './contender.ts'

export type Child = {
  pid: number
  call<T = void>(call: Call['call'], ...args: unknown[]): Promise<T>
  /** As systemd would: SIGTERM, and after ten seconds SIGKILL. */
  stop(): Promise<void>
}

const stopMaxMs = 10_000

/** Resolves when the process has loaded all it needs and waits to be asked. */
export async function startChild(
  file: string,
  env: Record<string, string>,
  args: string[] = [],
): Promise<Child> {
  const child = fork(file, args, {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  })
  const waiting = new Map<number, PromiseWithResolvers<unknown>>()
  let last = 0
  child.on('message', ({ id, result, error }: { id: number; result: unknown; error?: string }) => {
    const asked = waiting.get(id)
    waiting.delete(id)
    if (error === undefined) asked?.resolve(result)
    else asked?.reject(new Error(`${file}: ${error}`))
  })
  const exited = once(child, 'exit').then(([code, signal]) => {
    for (const asked of waiting.values()) {
      asked.reject(new Error(`${file} ended with ${signal ?? code} in the middle of a call`))
    }
  })
  const self: Child = {
    pid: child.pid ?? 0,
    call<T>(call: Call['call'], ...given: unknown[]) {
      const asked = Promise.withResolvers<unknown>()
      const id = ++last
      waiting.set(id, asked)
      child.send({ id, call, args: given })
      return asked.promise as Promise<T>
    },
    async stop() {
      child.kill('SIGTERM')
      const late = setTimeout(() => child.kill('SIGKILL'), stopMaxMs)
      await exited
      clearTimeout(late)
    },
  }
  await self.call('ready')
  return self
}
