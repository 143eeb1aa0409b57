// Opens the Redis client that every other file of this folder is handed. It is built to be left: a command is answered,
// refused or timed out within commandTimeoutMs, none waits for a reconnection or is sent twice, and a broken
// connection is made again in the background and never reaches the process as an uncaught error.
//
//   redis://[user:password@]host[:6379][/db]                     rediss:// for TLS
//   redis-sentinel://[user:password@]h1[:26379],h2/master[/db]   the credentials are the server's; the sentinels' own
//                                                                ones: ?sentinel_user=…&sentinel_password=…
//   redis-cluster://[user:password@]h1[:6379],h2                 some of the nodes are enough
//   rediss-sentinel:// and rediss-cluster:// for TLS

import { Cluster, Redis, type RedisOptions } from 'ioredis'

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
  onError?: (error: Error) => void
}

/** Redis did not answer, in time or as expected. Whoever has a Postgres adapter goes on with that. */
export class RedisUnavailable extends Error {
  constructor(cause: unknown) {
    super(`Redis: ${cause instanceof Error ? cause.message : String(cause)}`, { cause })
    this.name = 'RedisUnavailable'
  }
}

export function openRedis(options: RedisOpenOptions): OpenedRedis {
  const redis = connect(options)
  redis.on('error', (error: Error) => options.onError?.(error))
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

type RedisAddress = {
  kind: 'server' | 'sentinel' | 'cluster'
  tls: boolean
  nodes: { host: string; port: number }[]
  username?: string | undefined
  password?: string | undefined
  db: number
  master: string
  sentinelUser?: string | undefined
  sentinelPassword?: string | undefined
}

/** @throws Error that says what is right, without the URL: it may carry a password */
export function parseRedisUrl(url: string): RedisAddress {
  const form = /^(rediss?)(?:-(sentinel|cluster))?:\/\/(?:([^@/?]*)@)?([^@/?]+)(\/[^?]*)?(\?.*)?$/
  const [, scheme, kind = 'server', user, hosts = '', path = '', query] = form.exec(url) ?? []
  const wrong = (right: string): never => {
    throw new Error(right)
  }
  if (scheme === undefined) {
    wrong('must be redis://host:port, redis-sentinel://h1,h2/master or redis-cluster://h1,h2')
  }
  const nodes = hosts.split(',').map((node) => {
    const [, host, port] = /^(\[[0-9a-f:]+\]|[^:[\]]+)(?::(\d{1,5}))?$/i.exec(node) ?? []
    const number = port === undefined ? (kind === 'sentinel' ? 26379 : 6379) : Number(port)
    if (!host || number < 1 || number > 65535) return wrong('must list hosts as host or host:port')
    return { host: host.replace(/^\[|\]$/g, ''), port: number }
  })
  if (kind === 'server' && nodes.length > 1) {
    wrong('names several hosts: use redis-sentinel:// or redis-cluster://')
  }
  const parts = path.split('/').filter(Boolean).map(decodeURIComponent)
  const master = kind === 'sentinel' ? (parts.shift() ?? '') : ''
  if (kind === 'sentinel' && master === '')
    wrong('must name the master: redis-sentinel://h1,h2/master')
  const db = parts.shift() ?? '0'
  if (!/^\d+$/.test(db) || parts.length > 0)
    wrong('must end in the number of a database, or in nothing')
  if (kind === 'cluster' && db !== '0') wrong('cannot choose a database: a cluster has only 0')
  const [username, password] = (user ?? '').split(/:(.*)/s).map(decodeURIComponent)
  const more = new URLSearchParams(query)
  return {
    kind: kind as RedisAddress['kind'],
    tls: scheme === 'rediss',
    nodes,
    username: username || undefined,
    password: password || undefined,
    db: Number(db),
    master,
    sentinelUser: more.get('sentinel_user') ?? undefined,
    sentinelPassword: more.get('sentinel_password') ?? undefined,
  }
}

/**
 * What Redis answered.
 * @throws RedisUnavailable on any failure; a reply that is later than `ms` is one, even where the command still waits
 * behind others for its own commandTimeout to begin
 */
export function answered<T>(reply: Promise<T>, ms = 250): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const late = setTimeout(() => reject(new RedisUnavailable(`no answer within ${ms} ms`)), ms)
    reply
      .then(resolve, (error) => reject(new RedisUnavailable(error)))
      .finally(() => clearTimeout(late))
  })
}

/** A server-side script on one key, so that it runs on a Cluster too: sent once a connection, then called by hash. */
export function script<Args extends readonly (string | number)[], Result>(
  redis: RedisClient,
  name: string,
  lua: string,
): (key: string, ...args: Args) => Promise<Result> {
  redis.defineCommand(name, { lua, numberOfKeys: 1 })
  const commands = redis as unknown as Record<
    string,
    (key: string, ...args: Args) => Promise<Result>
  >
  return (key, ...args) => (commands[name] as (typeof commands)[string]).call(redis, key, ...args)
}
