// Reads the environment into typed settings, all faults named at once. A worker's config.ts lists its settings; only
// main.ts files hand the environment over. Secrets may come as NAME_FILE; in development a missing one is made at
// random and kept under the data folder, in production it is a fault.

import { randomBytes } from 'node:crypto'
import { linkSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { parseBrokerUrl } from '../domain/brokerUrl.ts'
import { traceSettings } from './traceSettings.ts'

export type Environment = Record<string, string | undefined>

export type Setting<T> = {
  /** One line for the settings table, with the unit. */
  doc: string
  /** Text that stands for an unset variable; none: unset is undefined, or a fault when `required`. */
  fallback?: string
  required?: boolean
  /** May come as NAME_FILE and is never printed. */
  secret?: boolean
  /** Made at random when unset in development. */
  generated?: boolean
  /** @throws Error whose message says what is right */
  parse(text: string): T
}

export type Settings = Record<string, Setting<unknown>>
export type Values<S extends Settings> = {
  readonly [K in keyof S]: S[K] extends Setting<infer T> ? T : never
}

/** One line a fault; the process exits on it, and a restart does not mend it. */
export class ConfigError extends Error {
  readonly faults: string[]
  constructor(faults: string[]) {
    super(`bad configuration: ${faults.join('; ')}`)
    this.name = 'ConfigError'
    this.faults = faults
  }
}

type Options<T> = { doc: string; fallback?: string; secret?: boolean; parse?: (text: string) => T }

const fail = (right: string): never => {
  throw new Error(right)
}

/** Free text, undefined when unset. */
export const text = (options: Options<string>): Setting<string | undefined> => ({
  parse: (value) => value,
  ...options,
})

/** Free text that is always there. */
export const requiredText = (options: Options<string>): Setting<string> => ({
  required: options.fallback === undefined,
  parse: (value) => value,
  ...options,
})

/** A whole number within [min, max]. */
export const int = (options: {
  doc: string
  fallback: number
  min?: number
  max?: number
}): Setting<number> => {
  const { doc, fallback, min = 0, max = Number.MAX_SAFE_INTEGER } = options
  return {
    doc,
    fallback: String(fallback),
    parse: (value) => {
      const number = /^\d{1,16}$/.test(value) ? Number(value) : Number.NaN
      return number >= min && number <= max
        ? number
        : fail(`must be a whole number from ${min} to ${max}`)
    },
  }
}

export const oneOf = <const T extends string>(options: {
  doc: string
  fallback: T
  values: readonly T[]
}): Setting<T> => ({
  doc: options.doc,
  fallback: options.fallback,
  parse: (value) =>
    options.values.find((known) => known === value) ??
    fail(`must be one of ${options.values.join(', ')}`),
})

/** A URL with one of the schemes given, undefined when unset. */
export const url = (
  options: Options<string> & { schemes: readonly string[] },
): Setting<string | undefined> => {
  const { schemes, ...rest } = options
  return {
    ...rest,
    parse: (value) =>
      URL.canParse(value) && schemes.includes(new URL(value).protocol.slice(0, -1))
        ? value
        : fail(`must be a URL that begins with ${schemes.map((s) => `${s}://`).join(' or ')}`),
  }
}

/** A secret of at least 16 characters, made at random in development. */
export const generatedSecret = (options: { doc: string }): Setting<string> => ({
  ...options,
  secret: true,
  generated: true,
  required: true,
  parse: (value) => (value.length >= 16 ? value : fail('must have at least 16 characters')),
})

const postgresUrl = (value: string): string =>
  /^postgres(ql)?:\/\//.test(value)
    ? value
    : fail('must be a URL that begins with postgres:// or postgresql://')

/** What every worker reads. */
export const commonSettings = {
  NODE_ENV: text({ doc: 'production refuses mock authentication and missing secrets' }),
  DATABASE_URL: {
    doc: 'Postgres; unset: `fleet` starts an embedded one',
    required: true,
    secret: true,
    parse: postgresUrl,
  } satisfies Setting<string> as Setting<string>,
  DATABASE_DIRECT_URL: text({
    doc: 'Postgres past a pooler such as PgBouncer, for wake-ups and migrations; unset: DATABASE_URL',
    secret: true,
    parse: postgresUrl,
  }),
  FLEET_DATA_DIR: requiredText({
    doc: 'folder for the embedded Postgres, made secrets, written mails',
    fallback: '.fleet',
  }),
  LOG_LEVEL: oneOf({
    doc: 'least level that is logged',
    fallback: 'info',
    values: ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'],
  }),
  METRICS_PORT: {
    doc: 'port of /healthz, /readyz, /metrics; unset: the worker’s own; 0: off',
    parse: (value: string) =>
      /^\d{1,5}$/.test(value) && Number(value) <= 65535
        ? Number(value)
        : fail('must be a port from 0 to 65535'),
  } satisfies Setting<number> as Setting<number | undefined>,
  METRICS_HOST: requiredText({ doc: 'address METRICS_PORT listens on', fallback: '127.0.0.1' }),
  ...traceSettings,
} as const

/** What the workers on either side of the broker read. */
export const brokerSettings = {
  BROKER_URL: text({
    doc: 'broker of the domain events: RabbitMQ, NATS JetStream or Redis; unset: the database',
    secret: true,
    parse: (value) => {
      parseBrokerUrl(value)
      return value
    },
  }),
} as const

/**
 * Reads `settings` out of `env`. `rules` tells what is wrong between them, one line each.
 * @throws ConfigError with every fault; secrets' values are not in it
 */
export function readConfig<S extends Settings>(
  settings: S,
  env: Environment,
  rules: (values: Values<S>) => string[] = () => [],
): Values<S> {
  const faults: string[] = []
  const wrong: string[] = []
  const values: Record<string, unknown> = {}
  for (const [name, setting] of Object.entries(settings)) {
    try {
      const value = rawValue(name, setting, env)
      if (value === undefined) {
        if (setting.required) fail('is not set')
      } else values[name] = setting.parse(value)
    } catch (error) {
      faults.push(`${name} ${(error as Error).message}${given(name, setting, env)}`)
      wrong.push(name)
      if (setting.fallback !== undefined) values[name] = setting.parse(setting.fallback)
    }
  }
  // Of a setting that is wrong already they would speak without knowing what was meant.
  const between = rules(values as Values<S>)
  faults.push(...between.filter((fault) => !wrong.some((name) => fault.includes(name))))
  if (faults.length > 0) throw new ConfigError(faults)
  return values as Values<S>
}

function rawValue(name: string, setting: Setting<unknown>, env: Environment): string | undefined {
  // An empty variable counts as unset: compose files and systemd units cannot leave one out.
  const direct = env[name] || undefined
  if (direct !== undefined) return direct
  const file = setting.secret ? env[`${name}_FILE`] : undefined
  if (file) {
    try {
      return readFileSync(file, 'utf8').trim()
    } catch (error) {
      throw new Error(`cannot be read from ${name}_FILE: ${(error as Error).message}`)
    }
  }
  if (setting.generated && env.NODE_ENV !== 'production') {
    return keptSecret(join(env.FLEET_DATA_DIR || '.fleet', 'secrets', name))
  }
  return setting.fallback
}

/**
 * Several processes may start at once: the first to link its file decides, and nobody sees half a secret. An empty file
 * is what a full disk left.
 */
function keptSecret(path: string): string {
  const read = () => {
    try {
      return readFileSync(path, 'utf8').trim()
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return ''
      throw error
    }
  }
  const draft = `${path}.${process.pid}`
  try {
    const kept = read()
    if (kept !== '') return kept
    mkdirSync(dirname(path), { recursive: true, mode: 0o700 })
    writeFileSync(draft, randomBytes(24).toString('hex'), { mode: 0o600 })
    if (read() === '') rmSync(path, { force: true })
    linkSync(draft, path)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') {
      throw new Error(`cannot be made and kept in ${path}: ${(error as Error).message}`)
    }
  } finally {
    try {
      rmSync(draft, { force: true })
    } catch {}
  }
  return read()
}

function given(name: string, setting: Setting<unknown>, env: Environment): string {
  const value = env[name]
  return value && !setting.secret ? ` (it is ${JSON.stringify(value.slice(0, 80))})` : ''
}
