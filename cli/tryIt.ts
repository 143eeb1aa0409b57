// What a newcomer can paste into a shell once the fleet is up: an event, an account, a hold, a purchase, its mails. The
// README shows the same lines. For AUTH_MODE mock only: a real token is not ours to give.

import { join } from 'node:path'
import type { Environment } from '../workers/config.ts'

const event = {
  name: 'Opening night',
  starts_at: '2030-05-01T19:00:00Z',
  waiting_room: false,
  sections: [{ name: 'Stalls', rows: 10, seats_per_row: 20, price_minor: 4500, currency: 'EUR' }],
}

export function tryItLines(api: string, dataDir: string, env: Environment): string[] {
  const given = env.INTERNAL_AUTH_SECRET_FILE
  const file = shellWord(given || join(dataDir, 'secrets', 'INTERNAL_AUTH_SECRET'))
  const secret = env.INTERNAL_AUTH_SECRET ? '$INTERNAL_AUTH_SECRET' : `$(cat ${file})`
  const mail = shellWord(join(dataDir, 'mail'))
  return [
    `api=${api}/api/v1`,
    `key() { node -p 'crypto.randomUUID().replaceAll("-","")'; }`,
    `ask() { curl -sS -H "Idempotency-Key: $(key)" -H 'Content-Type: application/json' "$@"; echo; }`,
    `field() { node -p "JSON.parse(fs.readFileSync(0)).$1"; }`,
    `ann='X-Mock-User-Id: ann'`,
    `event=$(ask $api/events -H "X-Internal-Auth: ${secret}" -d '${JSON.stringify(event)}' | field event_id)`,
    `ask -X PUT $api/users/ann -H "$ann" -d '{"email":"ann@example.com","locale":"en"}'`,
    `hold=$(ask $api/reservations -H "$ann" -d '{"event_id":"'$event'","quantity":2}' | field reservation_id)`,
    `ask $api/reservations/$hold/confirm -H "$ann" -d '{}'`,
    ...(env.EMAIL_PROVIDER ? [] : [`sleep 3; ls ${mail}   # two mails`]),
  ]
}

const shellWord = (text: string): string =>
  /^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`
