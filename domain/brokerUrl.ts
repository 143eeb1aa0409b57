// Reads BROKER_URL: which broker it means, and where it listens. The one list of what may stand there. No I/O.

export type BrokerKind = 'rabbitmq' | 'nats' | 'redis'

export type BrokerAddress = { kind: BrokerKind; nodes: { host: string; port: number }[] }

const schemes: Readonly<Record<string, { kind: BrokerKind; port: number }>> = {
  amqp: { kind: 'rabbitmq', port: 5672 },
  amqps: { kind: 'rabbitmq', port: 5671 },
  nats: { kind: 'nats', port: 4222 },
  tls: { kind: 'nats', port: 4222 },
  redis: { kind: 'redis', port: 6379 },
  rediss: { kind: 'redis', port: 6379 },
  'redis+cluster': { kind: 'redis', port: 6379 },
  'rediss+cluster': { kind: 'redis', port: 6379 },
  'redis+sentinel': { kind: 'redis', port: 26_379 },
  'rediss+sentinel': { kind: 'redis', port: 26_379 },
}
const right =
  'must begin with amqp://, amqps://, nats://, tls://, redis:// or rediss:// (these also +sentinel, +cluster)'
const encode =
  'must be a URL: percent-encode name and password where they have other characters than letters, digits and -._~ ' +
  '(# is %23, / is %2F, @ is %40, % is %25)'

/** @throws Error that says what is right, without the URL: it may carry a password */
export function parseBrokerUrl(url: string): BrokerAddress {
  const wrong = (what: string): never => {
    throw new Error(what)
  }
  const [, scheme = '', rest = ''] = /^([^:/]*):\/\/(.*)$/s.exec(url) ?? []
  const known = Object.hasOwn(schemes, scheme) ? schemes[scheme] : undefined
  if (known === undefined) return wrong(right)
  const [, user = '', hosts = ''] = /^(?:([^@/?#]*)@)?([^@/?#]+)([/?][^@#]*)?$/.exec(rest) ?? []
  if (hosts === '' || !isDecodable(user)) wrong(encode)
  const nodes = hosts.split(',').map((node) => {
    const [, host, port = known.port] =
      /^(\[[0-9a-f:.]+\]|[^:[\]\s]+)(?::(\d{1,5}))?$/i.exec(node) ?? []
    if (!host || Number(port) < 1 || Number(port) > 65_535) return wrong(encode)
    return { host: host.replace(/^\[|\]$/g, ''), port: Number(port) }
  })
  if (nodes.length > 1 && !scheme.includes('+')) {
    wrong('must name one host: a DNS name or a load balancer may stand for several')
  }
  if (known.kind !== 'redis' && !URL.canParse(url)) wrong(encode)
  return { kind: known.kind, nodes }
}

function isDecodable(text: string): boolean {
  try {
    decodeURIComponent(text)
    return true
  } catch {
    return false
  }
}
