// Starts a program of cli/main.ts under the Node that it needs: this one when it is recent enough, else the one that
// npm put into node_modules; signals and the exit code pass through. Plain JavaScript of 2020, so that an old Node can
// still read it and say what is missing.

// biome-ignore-start lint/style/useNodejsImportProtocol: Node 12 does not know the node: prefix
import { spawn } from 'child_process'
import { existsSync } from 'fs'
import { constants } from 'os'
import { dirname, join } from 'path'
import { fileURLToPath } from 'url'

// biome-ignore-end lint/style/useNodejsImportProtocol: see above

const needed = 24
const here = dirname(fileURLToPath(import.meta.url))
const root = dirname(here)

/** @param {'fleet' | 'jobs'} program */
export function launch(program) {
  if (!existsSync(join(root, 'node_modules', 'yargs', 'package.json'))) {
    fail(`${program}: the dependencies are not installed: run make install in ${root}`)
  }
  if (Number(process.versions.node.split('.')[0]) >= needed) {
    import('./main.ts').then(({ main }) => main(program, process.argv.slice(2)))
    return
  }
  const node = join(root, 'node_modules', 'node', 'bin', 'node')
  if (!existsSync(node)) {
    fail(
      `${program}: needs Node ${needed}, this is ${process.version}, and node_modules has none ` +
        `(npm was told to run no install scripts?): run npm rebuild node in ${root}, or install Node ${needed}`,
    )
  }
  passThrough(
    spawn(node, [join(here, `${program}.js`)].concat(process.argv.slice(2)), { stdio: 'inherit' }),
  )
}

function passThrough(child) {
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1', 'SIGUSR2']
  for (const signal of signals) process.on(signal, () => child.kill(signal))
  child.on('error', (error) => fail(`cannot start ${child.spawnfile}: ${error.message}`))
  child.on('exit', (code, signal) => {
    process.exit(signal === null ? code : 128 + constants.signals[signal])
  })
}

function fail(line) {
  process.stderr.write(`${line}\n`)
  process.exit(1)
}
