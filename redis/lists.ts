// A list that other systems push jobs on (LPUSH), taken from its other end without a moment in which an item is nowhere:
// it moves to a list of the taker's own, and is removed from there once it is safely elsewhere. What a taker that died
// had in hand goes back, by whoever finds it silent. The keys of one list share its slot, so it works on a Cluster.

import { answered, type RedisClient, script } from './open.ts'

export type IntakeList = {
  /** Up to `max`, the oldest first; waits up to `waitMs` for one. What was taken and not `done` comes first, again. */
  take(max: number, waitMs: number): Promise<Buffer[]>
  /** The `count` that were taken last are safely elsewhere. */
  done(count: number): Promise<void>
  /** Says that this taker lives, as each take does; to be said again within `lifeMs`. */
  showLife(): Promise<void>
  /** Gives back what takers that are silent have in hand. @returns how many items */
  recover(): Promise<number>
  /** Gives back what this one has in hand, and takes nothing more. */
  leave(): Promise<number>
  /** Not taken by anybody yet. */
  length(): Promise<number>
}

const answerMs = 5000
/** A taker that is silent for so long is dead. */
export const lifeMs = 20_000

/** KEYS: the list, the taker's own, its sign of life, the takers. ARGV: how many, the taker, its life. */
const moveScript = `
redis.call('sadd', KEYS[4], ARGV[2])
redis.call('set', KEYS[3], '1', 'PX', ARGV[3])
local moved = 0
while moved < tonumber(ARGV[1]) and redis.call('lmove', KEYS[1], KEYS[2], 'RIGHT', 'LEFT') do
  moved = moved + 1
end
return moved`

/** KEYS: the list, a taker's own, its sign of life, the takers. ARGV: the taker. -1: it lives. */
const returnScript = `
if redis.call('exists', KEYS[3]) == 1 then return -1 end
local moved = 0
while redis.call('lmove', KEYS[2], KEYS[1], 'LEFT', 'RIGHT') do moved = moved + 1 end
redis.call('srem', KEYS[4], ARGV[1])
return moved`

/** @param self names this taker among all */
export function openList(redis: RedisClient, key: string, self: string): IntakeList {
  const takers = `{${key}}:takers`
  const ownOf = (taker: string) => `{${key}}:taken:${taker}`
  const lifeOf = (taker: string) => `{${key}}:alive:${taker}`
  const own = ownOf(self)
  const move = script<[string, string, string, number, string, number], number>(
    redis,
    'flotillaMove',
    moveScript,
    4,
  )
  const giveBack = script<[string, string, string, string], number>(
    redis,
    'flotillaReturn',
    returnScript,
    4,
  )
  const ask = <T>(reply: Promise<T>, ms = answerMs): Promise<T> => answered(reply, ms)
  const inHand = async (max: number) => (await ask(redis.lrangeBuffer(own, -max, -1))).reverse()
  /** Known to the others before it has anything. */
  const moveUpTo = (max: number) => ask(move(key, own, lifeOf(self), takers, max, self, lifeMs))
  const back = (taker: string) => ask(giveBack(key, ownOf(taker), lifeOf(taker), takers, taker))

  return {
    async take(max, waitMs) {
      const left = await inHand(max)
      if (left.length > 0) return left
      if ((await moveUpTo(max)) === 0) {
        const seconds = waitMs / 1000
        const one = redis.blmove(key, own, 'RIGHT', 'LEFT', seconds)
        if ((await ask(one, waitMs + answerMs)) === null) return []
        await moveUpTo(max - 1)
      }
      return await inHand(max)
    },

    async done(count) {
      // The oldest lie at the end; nothing is there if this taker was taken for dead meanwhile.
      if (count > 0) await ask(redis.ltrim(own, 0, -count - 1))
    },

    async showLife() {
      await moveUpTo(0)
    },

    async recover() {
      const known = await ask(redis.smembers(takers))
      const moved = await Promise.all(known.filter((taker) => taker !== self).map(back))
      return moved.reduce((sum, count) => sum + Math.max(0, count), 0)
    },

    async leave() {
      await ask(redis.del(lifeOf(self)))
      return await back(self)
    },

    length: () => ask(redis.llen(key)),
  }
}
