// How many wait in the queues of the waiting room, for people who look on: a read that changes nothing.

import { answered, type RedisClient } from './open.ts'

/** By match; one whose keys are gone has nobody. @throws RedisUnavailable */
export async function readQueueLengths(
  redis: RedisClient,
  matchIds: readonly string[],
): Promise<Map<string, number>> {
  const tag = (matchId: string) => (redis.isCluster ? `{${matchId}}` : matchId)
  const lengths = matchIds.map(
    async (matchId) => [matchId, await answered(redis.zcard(`queue:${tag(matchId)}`))] as const,
  )
  return new Map(await Promise.all(lengths))
}
