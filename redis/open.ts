// Opens the Redis client that every other file of this folder is handed. It is built to be left: a command is answered,
// refused or timed out within commandTimeoutMs, none waits for a reconnection or is sent twice, and a broken
// connection is made again in the background and never reaches the process as an uncaught error.

import { Cluster, Redis, type RedisOptions } from 'ioredis'
import { parseRedisUrl } from './address.ts'

export type RedisClient = Redis | Cluster

export type OpenedRedis = {
  redis: RedisClient
  /** @throws RedisUnavailable when there is no connection within `ms` */
  ready(ms?: number): Promise<void>
  close(): Promise<void>
}

export type RedisOpenOptions = {
  url: string
  /** Shown by CLIENT LIST: `flotilla:<worker>`. */
  name: string
  commandTimeoutMs?: number
  /** Told of every failed attempt to connect. */
  onError?: (error: RedisUnavailable) => void
}

/** Redis did not answer, in time or as expected. Whoever has a Postgres adapter goes on with that. */
export class RedisUnavailable extends Error {
  constructor(cause: unknown) {
    // ioredis hangs the command on its errors, with the password or the answer that was its argument.
    if (cause instanceof Error && 'command' in cause) delete cause.command
    super(`Redis: ${cause instanceof Error ? cause.message : String(cause)}`, { cause })
    this.name = 'RedisUnavailable'
  }
}

export function openRedis(options: RedisOpenOptions): OpenedRedis {
  const redis = connect(options)
  redis.on('error', (error: Error) => options.onError?.(new RedisUnavailable(error)))
  return {
    redis,
    ready: (ms = 5000) => ready(redis, ms),
    async close() {
      // QUIT waits for the answers that are due; a Redis that is gone gives none.
      await redis.quit().catch(() => redis.disconnect())
    },
  }
}

function ready(redis: RedisClient, ms: number): Promise<void> {
  if (redis.status === 'ready') return Promise.resolve()
  return new Promise((resolve, reject) => {
    let last: unknown = 'not connected'
    const onError = (error: unknown) => {
      last = error
    }
    const settle = (done: () => void) => {
      clearTimeout(late)
      redis.off('error', onError).off('ready', onReady)
      done()
    }
    const onReady = () => settle(resolve)
    const late = setTimeout(() => settle(() => reject(new RedisUnavailable(last))), ms)
    redis.on('error', onError).on('ready', onReady)
  })
}

function connect({ url, name, commandTimeoutMs = 250 }: RedisOpenOptions): RedisClient {
  const address = parseRedisUrl(url)
  const reconnectMs = (attempt: number) => Math.min(50 * 2 ** attempt, 2000) * (0.5 + Math.random())
  const options = {
    username: address.username,
    password: address.password,
    db: address.db,
    ...(address.tls && { tls: {} }),
    connectionName: `flotilla:${name}`,
    connectTimeout: 2000,
    commandTimeout: commandTimeoutMs,
    retryStrategy: reconnectMs,
    // A command that may have run is not run again by the client: a counter would count twice.
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
    enableOfflineQueue: false,
    // After a failover the old master answers READONLY: look for the new one.
    reconnectOnError: (error: Error) => error.message.startsWith('READONLY'),
  } satisfies RedisOptions
  if (address.kind === 'cluster') {
    return new Cluster(address.nodes, {
      redisOptions: options,
      clusterRetryStrategy: reconnectMs,
      enableOfflineQueue: false,
      enableAutoPipelining: true,
      slotsRefreshTimeout: 2000,
    })
  }
  if (address.kind === 'sentinel') {
    return new Redis({
      ...options,
      sentinels: address.nodes,
      name: address.master,
      sentinelUsername: address.sentinelUser,
      sentinelPassword: address.sentinelPassword,
      enableTLSForSentinelMode: address.tls,
      sentinelRetryStrategy: reconnectMs,
      enableAutoPipelining: true,
    })
  }
  return new Redis({ ...options, ...address.nodes[0], enableAutoPipelining: true })
}

/**
 * What Redis answered.
 * @throws RedisUnavailable on any failure; a reply that is later than `ms` is one, even where the command still waits
 * behind others for its own commandTimeout to begin
 */
export function answered<T>(reply: Promise<T>, ms = 250): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const refuse = () => reject(new RedisUnavailable(`no answer within ${ms} ms`))
    // A turn later: when it was this process that was late, the answer lies there and is read first.
    const late = setTimeout(() => setImmediate(refuse), ms)
    reply
      .then(resolve, (error) => reject(new RedisUnavailable(error)))
      .finally(() => clearTimeout(late))
  })
}

/**
 * A server-side script on one key, so that it runs on a Cluster too: sent once a connection, then called by hash. Of
 * several keys, which must lie in one slot, the others are the first arguments.
 */
export function script<Args extends readonly (string | number)[], Result>(
  redis: RedisClient,
  name: string,
  lua: string,
  numberOfKeys = 1,
): (key: string, ...args: Args) => Promise<Result> {
  redis.defineCommand(name, { lua, numberOfKeys })
  const commands = redis as unknown as Record<
    string,
    (key: string, ...args: Args) => Promise<Result>
  >
  return (key, ...args) => (commands[name] as (typeof commands)[string]).call(redis, key, ...args)
}
