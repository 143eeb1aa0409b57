// Reads the service account file that FCM_CREDENTIALS names, as Google gives it out. What is wrong with it is a fault of
// the configuration, told without its key.

import { createPrivateKey, type KeyObject } from 'node:crypto'
import { readFileSync } from 'node:fs'

export type Credentials = {
  projectId: string
  clientEmail: string
  privateKey: KeyObject
  privateKeyId?: string
  tokenUri: string
}

/** @throws Error that says what is wrong with the file and what is right */
export function readCredentials(path: string): Credentials {
  const file = parse(path)
  const text = (name: string): string => {
    const value = file[name]
    if (typeof value === 'string' && value !== '') return value
    throw new Error(`names a file without ${name}: it must be the JSON key of a service account`)
  }
  if (file.type !== 'service_account') {
    throw new Error('names a file whose type is not "service_account"')
  }
  const tokenUri = text('token_uri')
  if (!/^https?:\/\//.test(tokenUri) || !URL.canParse(tokenUri)) {
    throw new Error('names a file whose token_uri is no URL')
  }
  const keyId = file.private_key_id
  return {
    projectId: text('project_id'),
    clientEmail: text('client_email'),
    privateKey: keyOf(text('private_key')),
    ...(typeof keyId === 'string' && { privateKeyId: keyId }),
    tokenUri,
  }
}

function parse(path: string): Record<string, unknown> {
  let text: string
  try {
    text = readFileSync(path, 'utf8')
  } catch (error) {
    throw new Error(`names a file that cannot be read: ${(error as Error).message}`)
  }
  try {
    const value: unknown = JSON.parse(text)
    if (typeof value === 'object' && value !== null) return value as Record<string, unknown>
  } catch {}
  throw new Error(
    'names a file that is no JSON object: it must be the JSON key of a service account',
  )
}

function keyOf(pem: string): KeyObject {
  try {
    const key = createPrivateKey(pem)
    if (key.asymmetricKeyType === 'rsa') return key
  } catch {}
  throw new Error('names a file whose private_key is no RSA key in PEM')
}
