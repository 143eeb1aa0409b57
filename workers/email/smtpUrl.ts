// Reads SMTP_URL: smtp://[user:password@]host[:587] (STARTTLS) or smtps://…[:465] (TLS from the start). With a password,
// and to another machine, a server without TLS is refused unless the URL ends in ?requireTLS=false; ?tls.rejectUnauthorized=
// false takes any certificate; ?name= is what we call ourselves.

import type SMTPConnection from 'nodemailer/lib/smtp-connection'

export type SmtpServer = {
  connection: SMTPConnection.Options
  auth?: { user: string; pass: string }
}

const forms = 'smtp://user:password@host:587 or smtps://user:password@host:465'
const known = ['requireTLS', 'tls.rejectUnauthorized', 'name']

/** @throws Error that says what is right, without the URL: it carries a password */
export function parseSmtpUrl(text: string): SmtpServer {
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (url === undefined || !/^smtps?:$/.test(url.protocol) || url.hostname === '') {
    throw new Error(`must be ${forms}`)
  }
  const strange = [...url.searchParams.keys()].find((name) => !known.includes(name))
  if (strange !== undefined) throw new Error(`may have only ${known.join(', ')} after the ?`)
  const asked = url.searchParams.get('requireTLS')
  if (asked !== null && asked !== 'true' && asked !== 'false') {
    throw new Error('may have only requireTLS=true or requireTLS=false')
  }
  const secure = url.protocol === 'smtps:'
  const host = url.hostname.replace(/^\[|\]$/g, '')
  const user = decodeURIComponent(url.username)
  const isLocal = /^(localhost|127(\.\d{1,3}){3}|::1)$/.test(host)
  const requireTLS = asked === null ? user !== '' && !isLocal : asked === 'true'
  const name = url.searchParams.get('name')
  return {
    connection: {
      host,
      port: url.port === '' ? (secure ? 465 : 587) : Number(url.port),
      secure,
      requireTLS: requireTLS && !secure,
      ...(name && { name }),
      ...(url.searchParams.get('tls.rejectUnauthorized') === 'false' && {
        tls: { rejectUnauthorized: false },
      }),
    },
    ...(user !== '' && { auth: { user, pass: decodeURIComponent(url.password) } }),
  }
}
