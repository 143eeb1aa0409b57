// The person at the terminal: asks and waits for an answer, shows how long work goes. All of it on stderr, so that stdout
// stays what the command says. Answers may be typed ahead; whoever ends the input or presses Ctrl-C answers nothing more.

import { createInterface, type Interface } from 'node:readline'
import type { Readable, Writable } from 'node:stream'

export type Terminal = {
  /** @returns what was typed, trimmed; undefined: there will be no answer */
  ask(question: string): Promise<string | undefined>
  /** One line over the one before; an empty one clears it. */
  show(line: string): void
  close(): void
}

export function openTerminal(input: Readable, output: Writable): Terminal {
  let reader: Interface | undefined
  const typed: string[] = []
  let waiting: ((answer: string | undefined) => void) | undefined
  let ended = false
  let shown = ''

  function open(): void {
    reader ??= createInterface({ input, output, terminal: true })
      .on('line', (line) => {
        if (waiting === undefined) typed.push(line.trim())
        else answer(line.trim())
      })
      .on('SIGINT', () => reader?.close())
      .on('close', () => {
        ended = true
        answer(undefined)
      })
  }
  const answer = (text: string | undefined): void => {
    const take = waiting
    waiting = undefined
    take?.(text)
  }
  return {
    async ask(question) {
      open()
      reader?.setPrompt(question)
      if (!ended) reader?.prompt()
      if (typed.length > 0) return typed.shift()
      if (ended) return undefined
      return await new Promise((resolve) => {
        waiting = resolve
      })
    },
    show(line) {
      if (line === shown) return
      output.write(`\r\x1b[K${line}`)
      shown = line
    },
    close() {
      if (shown !== '') output.write('\r\x1b[K')
      reader?.close()
    },
  }
}

/** Asks until the answer is one of the words or the first letter of one. @returns undefined: there was no answer */
export async function choose<const W extends string>(
  { ask }: Terminal,
  question: string,
  words: readonly W[],
): Promise<W | undefined> {
  for (;;) {
    const answer = (await ask(`${question} (${words.join('/')}) `))?.toLowerCase()
    if (answer === undefined) return undefined
    const word = words.find((one) => answer !== '' && one.startsWith(answer))
    if (word !== undefined) return word
  }
}
