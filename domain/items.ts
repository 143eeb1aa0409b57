// Items as words: their limits, the jobs about them, and what stands in an image. Nothing is stored or fetched here.

import { parseTraceparent } from './traces.ts'

export const titleMax = 200
export const descriptionMax = 10_000
/** Characters. A body has 64 kB at most, and the texts need some of it: about 36 kB of image. */
export const imageDataMax = 48_000
export const imageUrlMax = 2048
/** Of a list of similar items, as it is served. */
export const similarMax = 20

/** IndexItem: to the search index; EmbedItem: to the embedding vendor; RecomputeSimilar: who is like whom. */
export type ItemJobType = 'IndexItem' | 'EmbedItem' | 'RecomputeSimilar'

export type ItemJob = {
  type: ItemJobType
  item_id: string
  /** Of the item when the job was made, as text (64 bits): what came later has jobs of its own. */
  version: string
  request_id?: string
  traceparent?: string
}

const uuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/

/** @throws Error that says what is wrong with it; values are not in the message */
export const decodeItemJob =
  (type: ItemJobType) =>
  (data: unknown): ItemJob => {
    const given = (typeof data === 'object' && data !== null ? data : {}) as Record<string, unknown>
    if (given.type !== type) throw new Error(`type must be ${type}`)
    if (typeof given.item_id !== 'string' || !uuid.test(given.item_id)) {
      throw new Error('item_id must be a UUID in lower case')
    }
    if (typeof given.version !== 'string' || !/^\d{1,18}$/.test(given.version)) {
      throw new Error('version must be a whole number, as text')
    }
    const traceparent =
      given.traceparent === undefined ? undefined : parseTraceparent(given.traceparent)
    return {
      type,
      item_id: given.item_id,
      version: given.version,
      ...(typeof given.request_id === 'string' && { request_id: given.request_id }),
      ...(traceparent !== undefined && { traceparent }),
    }
  }

/** The first bytes of each kind of image, in hexadecimal, by its media type. */
const beginnings: Readonly<Record<string, RegExp>> = {
  'image/png': /^89504e470d0a1a0a/,
  'image/jpeg': /^ffd8ff/,
  'image/gif': /^474946383[79]61/,
  'image/webp': /^52494646.{8}57454250/,
}
const mediaTypes = Object.keys(beginnings)
  .map((type) => type.slice('image/'.length))
  .join(', ')

/**
 * What is wrong with an image, ending the sentence "image must …"; undefined: nothing. A URL is never fetched by us: the
 * vendor does. So it has to be one for the world, and one that may be told: https, a name with a dot, no password.
 */
export function imageFault(image: string): string | undefined {
  return image.startsWith('data:') ? dataFault(image) : urlFault(image)
}

function dataFault(image: string): string | undefined {
  if (image.length > imageDataMax) {
    return `have ${imageDataMax} characters at most as a data: URL; larger ones go by an https URL`
  }
  const [, type = '', base64 = ''] =
    /^data:([a-z]+\/[a-z]+);base64,([A-Za-z0-9+/]+={0,2})$/.exec(image) ?? []
  const begins = beginnings[type]
  if (begins === undefined) {
    return `be a data: URL such as data:image/png;base64,…, of one of ${mediaTypes}`
  }
  if (base64.length % 4 !== 0) return 'hold whole base64'
  const first = Buffer.from(base64.slice(0, 24), 'base64').toString('hex')
  return begins.test(first) ? undefined : `hold what its media type says, ${type}`
}

const publicName = /^(?!-)([a-z0-9-]{1,63}\.)+[a-z][a-z0-9-]{0,61}[a-z0-9]$/i
const localName = /\.(local|localhost|internal|intranet|lan|home\.arpa|test|invalid)$/i

function urlFault(image: string): string | undefined {
  const right = 'be an https URL, or a data: URL such as data:image/png;base64,…'
  if (image.length > imageUrlMax || !URL.canParse(image)) return right
  const { protocol, username, password, hostname } = new URL(image)
  if (protocol !== 'https:') return right
  if (username !== '' || password !== '') return 'have no user name or password in its URL'
  if (!publicName.test(hostname) || localName.test(hostname)) {
    return 'be at a public host name, not at an address or a local name'
  }
  return undefined
}

/** What of an image may be told in a list: where it is, not what it holds. */
export const imageUrlOf = (image: string | null): string | undefined =>
  image === null || image.startsWith('data:') ? undefined : image

/** The text that is embedded. */
export const embeddedText = ({
  title,
  description,
}: {
  title: string
  description: string
}): string => (description === '' ? title : `${title}\n\n${description}`)

/** Without capitals and accents, as words are kept and looked for. */
export const folded = (text: string): string =>
  text
    .normalize('NFKD')
    .replace(/[\u0300-\u036f]/g, '')
    .normalize('NFC')
    .toLowerCase()
