// Rates shared by all instances, on Redis: `rate:<name>` is a bucket, a hash of its tokens and when they were counted;
// `rate_slots:<name>` the time of the next slot. Each call is one script, and its time is Redis's (TIME), in µs.

import {
  type Rate,
  type Rates,
  type SlotRates,
  slotsAheadMs,
  type Tokens,
} from '../domain/rates.ts'
import { answered, type RedisClient, script } from './open.ts'

/** ARGV: tokens a second, burst, wanted. Gives what was granted and, in thousandths, what is left. */
const takeScript = `
local clock = redis.call('time')
local now = clock[1] * 1000000 + clock[2]
local bucket = redis.call('hmget', KEYS[1], 'tokens', 'at')
local tokens = tonumber(ARGV[2])
if bucket[1] then
  local passed = math.max(0, now - tonumber(bucket[2]))
  tokens = math.min(tokens, tonumber(bucket[1]) + passed * ARGV[1] / 1000000)
end
local granted = math.min(tonumber(ARGV[3]), math.floor(tokens))
if granted > 0 or not bucket[1] then
  redis.call('hset', KEYS[1], 'tokens', string.format('%.6f', tokens - granted), 'at', string.format('%.0f', now))
  redis.call('pexpire', KEYS[1], math.ceil(ARGV[2] / ARGV[1] * 1000) + 60000)
end
return { granted, math.floor((tokens - granted) * 1000) }`

/** ARGV: slots a second, wanted, how far ahead in ms. Gives what was granted and the wait in µs (0010_email.sql). */
const reserveScript = `
local clock = redis.call('time')
local now = clock[1] * 1000000 + clock[2]
local ahead = ARGV[3] * 1000
local wait = math.max(0, tonumber(redis.call('get', KEYS[1]) or '0') - now)
if wait > ahead + 1000000 / ARGV[1] + 1000000 then wait = 0 end
if wait > ahead then return { 0, math.ceil(wait - ahead) } end
local granted = math.max(0, math.min(tonumber(ARGV[2]), math.floor((ahead - wait) * ARGV[1] / 1000000) + 1))
if granted > 0 then
  redis.call('set', KEYS[1], string.format('%.0f', now + wait + granted * 1000000 / ARGV[1]), 'px', 60000)
end
return { granted, math.ceil(wait) }`

export function openRedisRates(redis: RedisClient): Rates & SlotRates {
  const take = script<[number, number, number], [number, number]>(redis, 'flotillaTake', takeScript)
  const reserve = script<[number, number, number], [number, number]>(
    redis,
    'flotillaReserve',
    reserveScript,
  )

  async function tokens({ name, perSecond, burst }: Rate, want: number): Promise<Tokens> {
    const [granted, left] = await answered(take(`rate:${name}`, perSecond, burst, want))
    const missing = Math.max(0, 1 - left / 1000)
    return {
      granted: want === 0 ? Math.floor(left / 1000) : granted,
      waitMs: wait(missing, perSecond),
    }
  }

  return {
    take: tokens,
    count: (rate) => tokens(rate, 0),
    async reserve({ name, perSecond }, want) {
      const key = `rate_slots:${name}`
      const [granted, waitUs] = await answered(reserve(key, perSecond, want, slotsAheadMs))
      return { granted, waitMs: waitUs / 1000 }
    },
  }
}

const wait = (missing: number, perSecond: number): number => Math.ceil((missing / perSecond) * 1000)
