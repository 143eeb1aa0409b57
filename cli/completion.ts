// What the TAB key offers, and the lines a shell reads at its start (`fleet shell-init`, `jobs completion`). The shell has
// a builtin named jobs, which wins over any program of that name: those lines put a function before it that calls the
// program for what is ours and the builtin for what is its own.

import { join } from 'node:path'
import { jobStates } from '../db/operate.ts'
import { queues } from '../domain/queues.ts'
import { benchNames } from './bench.ts'
import type { Command } from './program.ts'
import { root, workers } from './workers.ts'

/** What yargs is called with for completion, before the words of the line. */
export const completionFlag = '--get-yargs-completions'

const queueNames = queues.map(({ name }) => name)
const workerNames = workers.map(({ name }) => name)

const optionValues: Readonly<Record<string, readonly string[]>> = {
  '--queue': queueNames,
  '--state': jobStates,
  '--only': workerNames,
}

/** The values of a command's arguments; `many`: not only of the first one. */
const argumentValues: Readonly<Record<string, { values(): readonly string[]; many?: boolean }>> = {
  'jobs stats': { values: () => queueNames, many: true },
  'jobs list': { values: () => queueNames },
  'jobs send': { values: () => queueNames },
  'jobs pause': { values: () => queueNames },
  'jobs resume': { values: () => queueNames },
  'fleet run': { values: () => workerNames },
  'fleet bench': { values: benchNames },
}

/**
 * What may stand where the last word is being typed, besides commands and options; undefined: nothing else may, either.
 * `words`: the program and all words up to the cursor.
 */
export function offer(words: readonly string[]): { values: readonly string[]; only: boolean } {
  const [program = '', command = ''] = words
  const before = words.at(-2) ?? ''
  const current = words.at(-1) ?? ''
  const ofOption = optionValues[before]
  if (ofOption) return { values: ofOption, only: true }
  const { values, many = false } = argumentValues[`${program} ${command}`] ?? { values: () => [] }
  const given = words.slice(2, -1).filter((word) => !word.startsWith('-'))
  const isFree = many || given.length === 0
  if (words.length < 3 || current.startsWith('-') || !isFree) return { values: [], only: false }
  return { values: values().filter((value) => !given.includes(value)), only: false }
}

/** For bash and zsh. */
export const shellLines = (
  folder = join(root, 'cli'),
): string => `# Flotilla in this shell: put  eval "$(npx fleet shell-init)"  into ~/.bashrc or ~/.zshrc
command -v fleet >/dev/null 2>&1 || fleet() { ${quote(join(folder, 'fleet.js'))} "$@"; }
# The builtin keeps: no argument, its own options (-l -n -p -r -s -x), %job and job numbers.
jobs() {
  case "\${1-}" in
    ('' | - | -[!-]* | %* | [0-9]*) builtin jobs "$@" ;;
    (*) ${quote(join(folder, 'jobs.js'))} "$@" ;;
  esac
}
if [ -n "\${ZSH_VERSION-}" ]; then
  _flotilla() {
    local -a offers
    offers=("\${(@f)$(SHELL=/bin/sh ${quote(folder)}/"\${words[1]:t}.js" ${completionFlag} "\${(@)words[1,CURRENT]}" 2>/dev/null)}")
    [ -n "\${offers[1]-}" ] && compadd -- "\${offers[@]}" || _files
  }
  command -v compdef >/dev/null 2>&1 && compdef _flotilla fleet jobs
elif [ -n "\${BASH_VERSION-}" ]; then
  _flotilla() {
    local line=\${COMP_LINE:0:COMP_POINT} current offer
    local -a words
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=('')
    current=\${words[\${#words[@]}-1]}
    COMPREPLY=()
    while IFS= read -r offer; do
      # Bash completes what follows the last colon of failed:show, where the colon breaks words.
      [[ $offer == "$current"* ]] || continue
      [[ $COMP_WORDBREAKS == *:* ]] && offer=\${offer#"\${current%"\${current##*:}"}"}
      COMPREPLY+=("$offer")
    done < <(SHELL=/bin/sh ${quote(folder)}/"\${words[0]##*/}.js" ${completionFlag} "\${words[@]}" 2>/dev/null)
  }
  complete -o default -F _flotilla fleet jobs
fi`

const quote = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`

const command =
  (name: string, describe: string): Command =>
  (context) => ({ command: name, describe, handler: () => context.say(shellLines()) })

export const shellInit = command(
  'shell-init',
  'what ~/.bashrc or ~/.zshrc is to read: completion, and `jobs` past the builtin of that name',
)

export const completion = command('completion', 'the same as fleet shell-init')
