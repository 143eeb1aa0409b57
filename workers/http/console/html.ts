// HTML as values: what stands between the pieces of a template is text, and is escaped, whoever said it. The only way to
// have markup is to write it in a template here. Characters that would steer what follows them (controls, reversals of
// the direction of writing) are shown as �.

export type Html = { readonly html: string }
export type Part = Html | string | number | null | undefined | false | readonly Part[]

const escapes: Record<string, string> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
}

const steering =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g

export const escapeHtml = (text: string): string =>
  text
    .toWellFormed()
    .replace(steering, '\ufffd')
    .replace(/[&<>"']/g, (char) => escapes[char] as string)

/** `<td class="${kind}">${text}</td>`: attributes stand in double quotes. */
export function html(strings: TemplateStringsArray, ...parts: readonly Part[]): Html {
  let text = strings[0] as string
  parts.forEach((part, i) => {
    text += render(part) + strings[i + 1]
  })
  return { html: text }
}

export const nothing: Html = { html: '' }

function render(part: Part): string {
  if (part === null || part === undefined || part === false) return ''
  if (typeof part === 'string') return escapeHtml(part)
  if (typeof part === 'number') return String(part)
  if ('html' in part) return part.html
  return part.map(render).join('')
}

/** A path with its query; those that are empty are left out. */
export function link(path: string, query: Record<string, string | undefined> = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== '')
  const text = new URLSearchParams(given as [string, string][]).toString()
  return text === '' ? path : `${path}?${text}`
}
