// The Kubernetes manifests: what Kubernetes' own types say, a Deployment for every worker, and names, labels, ports,
// settings and times that fit each other. No cluster is asked.

import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { after, describe, test } from 'node:test'
import type { Deployment } from 'kubernetes-types/apps/v1.d.ts'
import type { HorizontalPodAutoscaler } from 'kubernetes-types/autoscaling/v2.d.ts'
import type { Job } from 'kubernetes-types/batch/v1.d.ts'
import type { Container, PodSpec, Service } from 'kubernetes-types/core/v1.d.ts'
import type { PodDisruptionBudget } from 'kubernetes-types/policy/v1.d.ts'
import { parse, parseAllDocuments } from 'yaml'
import { listSettings } from '../cli/exportSettings.ts'
import { workers } from '../cli/workers.ts'
import { startGuard } from './setup.ts'

const root = join(import.meta.dirname, '..')
const folder = join(root, 'deploy', 'kubernetes')
const read = (path: string) => readFileSync(join(folder, path), 'utf8')

type Manifest = Deployment | Job | Service | PodDisruptionBudget | HorizontalPodAutoscaler
type Kustomization = {
  resources: string[]
  configMapGenerator: { name: string; literals: string[] }[]
  secretGenerator?: { name: string; files: string[] }[]
  replicas?: { name: string; count: number }[]
}

const base = parse(read('base/kustomization.yaml')) as Kustomization
const example = parse(read('overlays/example/kustomization.yaml')) as Kustomization
const files = readdirSync(join(folder, 'base')).filter((name) => name !== 'kustomization.yaml')
/** Of each file what is in it. */
const manifests = new Map(
  files.map((name) => [
    name,
    parseAllDocuments(read(`base/${name}`)).map((document) => {
      assert.deepEqual(document.errors, [], name)
      return document.toJS() as Manifest
    }),
  ]),
)
const of = <T extends Manifest>(name: string, kind: T['kind']): T =>
  manifests.get(`${name}.yaml`)?.find((one) => one.kind === kind) as T
const names = workers.map(({ name }) => name)
/** With those whose worker is not there yet. */
const deployed = files.map((file) => basename(file, '.yaml')).filter((name) => name !== 'migrate')

const podOf = (name: string): PodSpec => {
  const owner = name === 'migrate' ? of<Job>(name, 'Job') : of<Deployment>(name, 'Deployment')
  return owner.spec?.template.spec as PodSpec
}
const containerOf = (name: string): Container => podOf(name).containers[0] as Container
const wordsOf = (literals: string[]) => literals.map((line) => line.split('=', 1)[0] as string)

describe('to Kubernetes', () => {
  const dir = mkdtempSync(join(tmpdir(), 'flotilla-kubernetes-'))
  const guard = startGuard()
  guard.watch({ dir })
  after(() => guard.end())
  const groups: Record<string, string> = {
    'apps/v1': 'apps/v1',
    'batch/v1': 'batch/v1',
    v1: 'core/v1',
    'policy/v1': 'policy/v1',
    'autoscaling/v2': 'autoscaling/v2',
  }

  /** What the compiler says of manifests as values of their types, an unknown field too. */
  function faults(all: readonly Manifest[]): string {
    const lines = all.map((one, i) => {
      const from = `kubernetes-types/${groups[String(one.apiVersion)]}.d.ts`
      return `export const m${i}: import('${from}', { with: { 'resolution-mode': 'import' } }).${one.kind} = ${JSON.stringify(one)}`
    })
    writeFileSync(join(dir, 'manifests.ts'), lines.join('\n'))
    try {
      const tsc = join(root, 'node_modules', '.bin', 'tsc')
      const options = [
        '--noEmit',
        '--strict',
        '--skipLibCheck',
        '--module',
        'nodenext',
        '--types',
        '',
      ]
      execFileSync(tsc, [...options, 'manifests.ts'], { cwd: dir, encoding: 'utf8', stdio: 'pipe' })
      return ''
    } catch (error) {
      return String((error as { stdout?: string }).stdout)
    }
  }

  test('every manifest is what its types say, and a misspelled one is not', () => {
    symlinkSync(join(root, 'node_modules'), join(dir, 'node_modules'))
    writeFileSync(join(dir, 'package.json'), '{"type":"module"}')
    const all = [...manifests.values()].flat()
    assert.ok(all.length > 2 * names.length)
    assert.equal(faults(all), '')
    const misspelled = JSON.stringify(of('email', 'Deployment')).replace(
      'livenessProbe',
      'liveness',
    )
    assert.match(faults([JSON.parse(misspelled)]), /liveness/)
  })
})

test('every worker has its manifests in the base, and the base no other', () => {
  for (const name of names) {
    assert.ok(files.includes(`${name}.yaml`), `deploy/kubernetes/base has no ${name}.yaml`)
  }
  const wanted = ['migrate.yaml', ...names.map((name) => `${name}.yaml`)]
  assert.deepEqual([...base.resources].sort(), wanted.sort())
})

for (const name of deployed) {
  test(`${name}: names, labels and ports fit each other`, () => {
    const { spec } = of<Deployment>(name, 'Deployment')
    const labels = spec?.template.metadata?.labels
    assert.equal(labels?.['app.kubernetes.io/name'], name)
    assert.deepEqual(spec?.selector.matchLabels, labels)
    const [spread] = podOf(name).topologySpreadConstraints ?? []
    assert.deepEqual(spread?.labelSelector?.matchLabels, labels)
    const budget = of<PodDisruptionBudget>(name, 'PodDisruptionBudget').spec
    assert.deepEqual(budget?.selector?.matchLabels, labels)
    assert.equal(budget?.maxUnavailable, 1)

    const { ports = [], livenessProbe, readinessProbe, startupProbe } = containerOf(name)
    const metrics = ports.find((port) => port.name === 'metrics')?.containerPort
    const port = base.configMapGenerator[0]?.literals.includes(`METRICS_PORT=${metrics}`)
    assert.ok(port, `METRICS_PORT is not ${metrics}`)
    assert.equal(spec?.template.metadata?.annotations?.['prometheus.io/port'], String(metrics))
    assert.deepEqual(livenessProbe?.httpGet, { path: '/healthz', port: 'metrics' })
    assert.deepEqual(startupProbe?.httpGet, { path: '/healthz', port: 'metrics' })
    assert.deepEqual(readinessProbe?.httpGet, { path: '/readyz', port: 'metrics' })

    for (const one of manifests.get(`${name}.yaml`) ?? []) {
      assert.equal(one.metadata?.name, name)
      if (one.kind === 'Service') {
        const { selector, ports: served = [] } = one.spec as NonNullable<Service['spec']>
        assert.deepEqual(selector, labels)
        for (const { targetPort } of served) {
          assert.ok(ports.some((own) => own.name === targetPort))
        }
      }
      if (one.kind === 'HorizontalPodAutoscaler') {
        const target = (one as HorizontalPodAutoscaler).spec?.scaleTargetRef
        assert.deepEqual(target, { apiVersion: 'apps/v1', kind: 'Deployment', name })
        assert.equal(spec?.replicas, undefined)
      }
    }
  })

  test(`${name}: is waited for as long as its grace and what comes before it`, () => {
    const { args = [], lifecycle } = containerOf(name)
    assert.deepEqual(args.slice(0, 2), ['run', name])
    const grace = Number(/--grace=(\d+)/.exec(args.join(' '))?.[1])
    const pause = Number(lifecycle?.preStop?.exec?.command?.[1] ?? 0)
    assert.ok(Number(podOf(name).terminationGracePeriodSeconds) > pause + grace + 5)
  })
}

for (const name of [...deployed, 'migrate']) {
  test(`${name}: has no rights, and writes where it may`, () => {
    const pod = podOf(name)
    const { securityContext: own, volumeMounts = [], resources } = containerOf(name)
    assert.equal(pod.securityContext?.runAsNonRoot, true)
    assert.equal(pod.securityContext?.seccompProfile?.type, 'RuntimeDefault')
    assert.equal(pod.automountServiceAccountToken, false)
    assert.equal(pod.enableServiceLinks, false)
    assert.equal(own?.allowPrivilegeEscalation, false)
    assert.equal(own?.readOnlyRootFilesystem, true)
    assert.deepEqual(own?.capabilities, { drop: ['ALL'] })
    assert.ok(resources?.requests?.memory && resources.limits?.memory && resources.requests.cpu)
    const paths = Object.fromEntries(volumeMounts.map((mount) => [mount.name, mount.mountPath]))
    assert.equal(paths.data, '/var/lib/flotilla')
    assert.deepEqual(Object.keys(paths).sort(), pod.volumes?.map((volume) => volume.name).sort())
  })
}

test('settings are some that the workers read, and their files lie in the Secret', () => {
  const settings = new Map(listSettings().map(({ name, setting }) => [name, setting]))
  const secrets = new Set(
    example.secretGenerator?.flatMap(({ files }) => files.map((file) => basename(file))),
  )
  const literals = [base, example].flatMap((one) =>
    one.configMapGenerator.flatMap((map) => map.literals),
  )
  const own = names.flatMap((name) =>
    (containerOf(name).env ?? []).map((one) => `${one.name}=${one.value}`),
  )
  for (const literal of [...literals, ...own]) {
    const [word = ''] = wordsOf([literal])
    const isFile = word.endsWith('_FILE')
    const setting = settings.get(isFile ? word.slice(0, -'_FILE'.length) : word)
    assert.ok(setting, `${word} is no setting`)
    if (!isFile) continue
    assert.ok(setting.secret, word)
    const [, file = ''] = /=\/run\/secrets\/flotilla\/(.+)$/.exec(literal) ?? []
    assert.ok(secrets.has(file), `${literal} is not in the Secret`)
  }
})

test('scale: one pod of mails, several of pushes, the waiting room by CPU and connections', () => {
  assert.equal(of<Deployment>('email', 'Deployment').spec?.replicas, 1)
  assert.ok(Number(of<Deployment>('push', 'Deployment').spec?.replicas) > 1)
  const { spec } = of<HorizontalPodAutoscaler>('waitingroom', 'HorizontalPodAutoscaler')
  assert.deepEqual([spec?.minReplicas, spec?.maxReplicas], [3, 20])
  const [cpu, connections] = spec?.metrics ?? []
  assert.deepEqual(cpu?.resource, {
    name: 'cpu',
    target: { type: 'Utilization', averageUtilization: 70 },
  })
  assert.deepEqual(connections?.pods, {
    metric: { name: 'websocket_connections' },
    target: { type: 'AverageValue', averageValue: '5000' },
  })
  for (const { name } of example.replicas ?? []) assert.ok(names.includes(name))
})
