// The embedding vendor: an OpenAI-compatible API (POST <url>/embeddings). A text goes as `input`, an image with its text as
// `messages` with an image_url, as vLLM and those after it have it. What is answered is data, each with its own rule; the
// key is in no text that leaves here.
// https://platform.openai.com/docs/api-reference/embeddings, https://docs.vllm.ai/en/latest/serving/openai_compatible_server/

import { readRetryAfter } from '../../domain/retryAfter.ts'
import { normalized } from '../../domain/vectors.ts'
import { readLimits, type Told } from '../../domain/vendorPace.ts'

export type EmbedOutcome = { told: Told; usedTokens?: number | undefined } & (
  | { is: 'embedded'; vector: Float32Array }
  /** Never: this item. */
  | { is: 'rejected'; why: string }
  /** Not now, and not before `afterMs`. */
  | { is: 'limited'; why: string; afterMs: number }
  /** None of them: the key, the model or what is paid for. People have to mend it. */
  | { is: 'gone'; why: string }
  /** It did not do its work. */
  | { is: 'failed'; why: string }
)

export type Vendor = {
  embed(input: { text: string; image: string | null }, signal: AbortSignal): Promise<EmbedOutcome>
  /** What it will cost, in tokens, more or less: what it really costs is learned from the answers. */
  estimate(input: { text: string; image: string | null }): number
}

export type VendorOptions = {
  url: string
  apiKey: string | undefined
  model: string
  withImages: boolean
  timeoutMs: number
}

/** Of 16,000 numbers with all their digits: less than half of it. */
const answerMaxBytes = 1024 * 1024
const whyMax = 300
const dimensionsMax = 16_000
/** When it does not say how long. */
const limitedMs = 5000
/** About four letters of English are a token, and an image some hundreds. */
const lettersPerToken = 4
const imageTokens = 500
const nothing: Told = { requests: undefined, tokens: undefined }

export function createVendor(options: VendorOptions): Vendor {
  const { url, apiKey, model, withImages, timeoutMs } = options
  const endpoint = `${url.replace(/\/+$/, '')}/embeddings`
  const safely = (text: string): string =>
    (apiKey === undefined ? text : text.replaceAll(apiKey, '***')).slice(0, whyMax)

  function bodyOf(text: string, image: string | null): string {
    const common = { model, encoding_format: 'float' }
    if (image === null || !withImages) return JSON.stringify({ ...common, input: text })
    const content = [
      { type: 'image_url', image_url: { url: image } },
      { type: 'text', text },
    ]
    return JSON.stringify({ ...common, messages: [{ role: 'user', content }] })
  }

  function outcomeOf({ status, headers }: Response, body: string): EmbedOutcome {
    const told = readLimits((name) => headers.get(name))
    if (status === 200) return { told, ...readEmbedding(body) }
    const { code, message } = readError(body)
    const why = safely(
      `the vendor answered ${status} ${code} ${message}`.replace(/\s+/g, ' ').trim(),
    )
    if (status === 429) {
      // Nothing is paid for any more: no waiting helps.
      if (code === 'insufficient_quota') return { is: 'gone', told, why }
      const afterMs = readRetryAfter(headers.get('retry-after')) ?? limitedMs
      return { is: 'limited', told, why, afterMs }
    }
    if ([401, 402, 403, 404, 405].includes(status)) return { is: 'gone', told, why }
    if (status >= 400 && status < 500 && status !== 408) return { is: 'rejected', told, why }
    return { is: 'failed', told, why }
  }

  return {
    async embed({ text, image }, signal) {
      try {
        const response = await fetch(endpoint, {
          method: 'POST',
          headers: {
            'content-type': 'application/json',
            ...(apiKey !== undefined && { authorization: `Bearer ${apiKey}` }),
          },
          body: bodyOf(text, image),
          // The key is for this host.
          redirect: 'error',
          signal: AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]),
        })
        const body = await readBounded(response)
        if (body !== undefined) return outcomeOf(response, body)
        return { is: 'failed', told: nothing, why: 'the vendor’s answer was larger than 1 MB' }
      } catch (error) {
        // Nobody waits for it any more: that is not the vendor's fault.
        signal.throwIfAborted()
        return { is: 'failed', told: nothing, why: safely(faultOf(error, timeoutMs)) }
      }
    },
    estimate: ({ text, image }) =>
      Math.ceil(text.length / lettersPerToken) + (image !== null && withImages ? imageTokens : 0),
  }
}

async function readBounded(response: Response): Promise<string | undefined> {
  const chunks: Uint8Array[] = []
  let bytes = 0
  for await (const chunk of response.body ?? []) {
    bytes += chunk.length
    if (bytes > answerMaxBytes) return undefined
    chunks.push(chunk)
  }
  return Buffer.concat(chunks).toString()
}

type Answer = { data?: { embedding?: unknown }[]; usage?: Record<string, unknown> }

function readEmbedding(body: string) {
  let answer: Answer
  try {
    answer = Object(JSON.parse(body))
  } catch {
    return { is: 'failed', why: 'the vendor’s answer is no JSON' } as const
  }
  const usage = answer.usage?.total_tokens ?? answer.usage?.prompt_tokens
  const usedTokens = typeof usage === 'number' ? usage : undefined
  const numbers = Array.isArray(answer.data) ? answer.data[0]?.embedding : undefined
  const isVector =
    Array.isArray(numbers) &&
    numbers.length >= 2 &&
    numbers.length <= dimensionsMax &&
    numbers.every((one) => typeof one === 'number')
  if (!isVector) {
    const why = `the vendor’s answer has no data[0].embedding of 2 to ${dimensionsMax} numbers`
    return { is: 'failed', usedTokens, why } as const
  }
  try {
    return { is: 'embedded', usedTokens, vector: normalized(numbers as number[]) } as const
  } catch (error) {
    return {
      is: 'failed',
      usedTokens,
      why: `of the vendor’s answer: ${(error as Error).message}`,
    } as const
  }
}

function readError(body: string): { code: string; message: string } {
  try {
    const said = Object(Object(JSON.parse(body)).error)
    const words = (value: unknown) => (typeof value === 'string' ? value : '')
    return { code: words(said.code) || words(said.type), message: words(said.message) }
  } catch {
    return { code: '', message: '' }
  }
}

function faultOf(error: unknown, timeoutMs: number): string {
  const { name, message, cause } = error as Error & { cause?: { code?: string; message?: string } }
  if (name === 'TimeoutError') return `the vendor did not answer within ${timeoutMs} ms`
  return `the vendor cannot be reached: ${cause?.code ?? ''} ${cause?.message || message}`
}
