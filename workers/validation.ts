// Turns what Ajv found into sentences a caller can act on: which field, what is right, where that helps what was
// given. The place is a JSON Pointer into the body. Ajv stops at the first fault, so that none of its rules meets a text
// or a list that another has found too long.

import type { FastifySchemaValidationError } from 'fastify'
import { AppError } from '../domain/errors.ts'

export type FieldError = { path: string; message: string }

/** With `verbose`, Ajv adds the schema that was not met and the value. */
type Finding = FastifySchemaValidationError & {
  schema?: unknown
  data?: unknown
  parentSchema?: { type?: string; description?: string; properties?: Record<string, unknown> }
}

const errorsMax = 20

export const invalid = (errors: FieldError[]): AppError => {
  const [first] = errors
  const place = first?.path ? `${first.path} ` : 'the body '
  return new AppError('VALIDATION_FAILED', `${place}${first?.message}`, {
    errors: errors.slice(0, errorsMax),
  })
}

export function fieldErrors(findings: readonly Finding[]): FieldError[] {
  // The branches of a oneOf report their own failures beside its one.
  const own = findings.filter(({ schemaPath }) => !/\/oneOf\/\d/.test(schemaPath))
  return own.slice(0, errorsMax).map(fieldError)
}

function fieldError(finding: Finding): FieldError {
  const { keyword, instancePath, params, schema, data, parentSchema } = finding
  // Also where a oneOf fails first.
  if (parentSchema?.type === 'object' && !isObject(data)) {
    return { path: instancePath, message: 'must be an object' }
  }
  switch (keyword) {
    case 'required':
      return at(instancePath, params.missingProperty, 'is required')
    case 'dependencies':
      return at(
        instancePath,
        params.missingProperty,
        `is required where ${params.property} is given`,
      )
    case 'additionalProperties': {
      const known = Object.keys(parentSchema?.properties ?? {})
      const right = known.length > 0 ? `; known are ${known.join(', ')}` : ': no body is needed'
      return at(instancePath, params.additionalProperty, `is not a known field${right}`)
    }
    case 'oneOf': {
      const choices = (schema as { required: string[] }[]).map(({ required }) =>
        required.join(' with '),
      )
      return { path: instancePath, message: `must have either ${choices.join(' or ')}, not both` }
    }
  }
  const right = parentSchema?.description
  return { path: instancePath, message: right ? `must be ${right}` : `is not valid: ${keyword}` }
}

const isObject = (data: unknown) =>
  typeof data === 'object' && data !== null && !Array.isArray(data)

function at(path: string, property: unknown, message: string): FieldError {
  const name = String(property).slice(0, 80).replaceAll('~', '~0').replaceAll('/', '~1')
  return { path: `${path}/${name}`, message }
}
