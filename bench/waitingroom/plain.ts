// What bench/waitingroom.ts is measured beside: a plain `ws` server, a process a share of the port, that sends every
// change to everybody, as the usual example does. Changes come over Redis pub/sub.

import { createServer } from 'node:http'
import { Redis } from 'ioredis'
import { WebSocketServer } from 'ws'

const server = createServer()
const sockets = new WebSocketServer({ server, perMessageDeflate: false })
const redis = new Redis(process.env.REDIS_URL!)
await redis.subscribe('plain')
redis.on('message', (_, text) => {
  for (const client of sockets.clients) client.send(text)
})
server.listen({ host: '127.0.0.1', port: Number(process.env.PORT), reusePort: true, backlog: 4096 })
process.on('disconnect', () => process.exit())
process.send?.('up')
