// The cable between a client and a server on 127.0.0.1, which can be pulled: connections break, new ones are refused,
// until it is plugged in again. Or silenced: what is connected stays so, and hears nothing until it is freed.

import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net'

export type Cable = {
  /** The server's URL, by way of the cable. */
  url: string
  pull(): void
  /** Present connections swallow what they are given, without an end or an error; new ones work. */
  silence(): void
  /** They give out what they swallowed, and work again. */
  free(): void
  plug(): Promise<void>
}

export async function openCable(serverUrl: string): Promise<Cable> {
  const { hostname, port } = new URL(serverUrl)
  const sockets = new Map<Socket, Socket>()
  let server: Server

  async function listen(at: number): Promise<number> {
    server = createServer((near) => {
      const far = connect(Number(port), hostname)
      for (const [from, to] of [
        [near, far],
        [far, near],
      ] as const) {
        sockets.set(from, to)
        from.on('error', () => to.destroy())
        from.on('close', () => {
          sockets.delete(from)
          to.destroy()
        })
        from.pipe(to)
      }
    })
    server.listen(at, '127.0.0.1').unref()
    await once(server, 'listening')
    return (server.address() as AddressInfo).port
  }

  const near = await listen(0)
  const url = new URL(serverUrl)
  url.hostname = '127.0.0.1'
  url.port = String(near)
  return {
    url: url.href,
    pull() {
      server.close()
      for (const socket of sockets.keys()) socket.destroy()
    },
    silence() {
      for (const socket of sockets.keys()) socket.unpipe().pause()
    },
    free() {
      for (const [from, to] of sockets) from.pipe(to)
    },
    async plug() {
      if (!server.listening) await listen(near)
    },
  }
}
