// Reads REDIS_URL: one server, or some nodes of a Cluster, or the sentinels that know a master. No I/O.
//
//   redis://[user:password@]host[:6379][/db]                     rediss:// for TLS
//   redis+sentinel://[user:password@]h1[:26379],h2/master[/db]   the credentials are the server's; the sentinels' own
//                                                                ones: ?sentinel_user=…&sentinel_password=…
//   redis+cluster://[user:password@]h1[:6379],h2                 some of the nodes are enough
//   rediss+sentinel:// and rediss+cluster:// for TLS

export type RedisAddress = {
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
  const form = /^(rediss?)(?:\+(sentinel|cluster))?:\/\/(?:([^@/?]*)@)?([^@/?]+)(\/[^?]*)?(\?.*)?$/
  const [, scheme, kind = 'server', user, hosts = '', path = '', query] = form.exec(url) ?? []
  const wrong = (right: string): never => {
    throw new Error(right)
  }
  if (scheme === undefined) {
    wrong('must be redis://host:port, redis+sentinel://h1,h2/master or redis+cluster://h1,h2')
  }
  const nodes = hosts.split(',').map((node) => {
    const [, host, port] = /^(\[[0-9a-f:]+\]|[^:[\]]+)(?::(\d{1,5}))?$/i.exec(node) ?? []
    const number = port === undefined ? (kind === 'sentinel' ? 26379 : 6379) : Number(port)
    if (!host || number < 1 || number > 65535) return wrong('must list hosts as host or host:port')
    return { host: host.replace(/^\[|\]$/g, ''), port: number }
  })
  if (kind === 'server' && nodes.length > 1) {
    wrong('names several hosts: use redis+sentinel:// or redis+cluster://')
  }
  const parts = path.split('/').filter(Boolean).map(decodeURIComponent)
  const master = kind === 'sentinel' ? (parts.shift() ?? '') : ''
  if (kind === 'sentinel' && master === '')
    wrong('must name the master: redis+sentinel://h1,h2/master')
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

/** A URL as it is, once it is known to be one. @throws as parseRedisUrl */
export function redisUrl(value: string): string {
  parseRedisUrl(value)
  return value
}
