// Takes each message once as far as Redis can tell, for a consumer whose effect is not in a database: claim, do, finish.
// What it promises: while a claim lives nobody else works on the message, and after `finish` nobody does for 8 days. What
// it cannot promise: a consumer that dies after its effect and before `finish`, or that outlives its claim, has the effect
// happen twice; and a Redis that fails over may forget a claim. Give the effect the event's id as an idempotency key where
// it takes one, or pass it `fence`, which grows with each claim: a store that remembers the highest refuses the late one.
// Works with anything that has ioredis's `eval(script, keys, ...keysAndArgs)`.

// @ts-check

/** Longer than anything sends a message again: 8 days. */
export const keepSeconds = 8 * 86_400

const claimScript = `
local is = redis.call('get', KEYS[1])
if is then return { string.sub(is, 1, 5) == 'done:' and 'done' or 'busy', 0, redis.call('pttl', KEYS[1]) } end
local fence = redis.call('incr', KEYS[2])
redis.call('expire', KEYS[2], ARGV[2])
redis.call('set', KEYS[1], 'run:' .. fence, 'px', ARGV[1])
return { 'mine', fence, 0 }`

/** ARGV: the fence, what stands there afterwards (empty: nothing), its life in ms. */
const settleScript = `
if redis.call('get', KEYS[1]) ~= 'run:' .. ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('del', KEYS[1]) else redis.call('set', KEYS[1], ARGV[2], 'px', ARGV[3]) end
return 1`

/**
 * @typedef {{ eval(script: string, keys: number, ...args: (string | number)[]): Promise<unknown> }} RedisClient
 * @typedef {{ is: 'mine', fence: number } | { is: 'done' } | { is: 'busy', retryAfterMs: number }} Claim
 */

/**
 * @param {RedisClient} redis
 * @param {string} consumer
 */
export function openDedupe(redis, consumer) {
  // Both keys of a message lie on one node of a Cluster. A UUID is the same in capitals.
  /** @param {string} id */
  const keysOf = (id) => {
    const key = `processed:${consumer}:{${id.toLowerCase()}}`
    return [key, `${key}:fence`]
  }

  /** @param {string} id @param {number} fence @param {string} to @param {number} lifeMs */
  async function settle(id, fence, to, lifeMs) {
    const [key = ''] = keysOf(id)
    return (await redis.eval(settleScript, 1, key, fence, to, lifeMs)) === 1
  }

  return {
    /**
     * @param {string} id the event's `id`
     * @param {number} lifeMs longer than the effect takes; `extend` makes it longer
     * @returns {Promise<Claim>} `mine`: do it, then `finish`. `done`: acknowledge. `busy`: let it come again later
     */
    async claim(id, lifeMs = 60_000) {
      const keys = keysOf(id)
      const reply = await redis.eval(claimScript, 2, ...keys, lifeMs, keepSeconds)
      const [is, fence, leftMs] = /** @type {[string, number, number]} */ (reply)
      if (is === 'mine') return { is, fence }
      return is === 'done' ? { is } : { is: 'busy', retryAfterMs: Math.max(1, leftMs) }
    },
    /**
     * After the effect, before the acknowledgement. @param {string} id @param {number} fence
     * @returns {Promise<boolean>} false: the claim was over, and another may have done it as well
     */
    finish: (id, fence) => settle(id, fence, `done:${fence}`, keepSeconds * 1000),
    /** @param {string} id @param {number} fence @param {number} lifeMs @returns {Promise<boolean>} */
    extend: (id, fence, lifeMs) => settle(id, fence, `run:${fence}`, lifeMs),
    /** It failed, and may be tried again at once. @param {string} id @param {number} fence */
    release: (id, fence) => settle(id, fence, '', 0),
  }
}
