// Vectors as models give them: near some hundreds of centres, all in one narrow cone, a few near nothing. Half of their
// spread is in a tenth of the dimensions, as it is in real ones.

import { v7 as uuidv7 } from 'uuid'
import { codeOf, normalized } from '../../domain/vectors.ts'
import { diceOf } from '../../test/itemRuns.ts'

export function bulkVectors(dimensions: number, clusters: number) {
  const random = diceOf(42)
  const gauss = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random())
  const scale = Float32Array.from({ length: dimensions }, (_, i) => (i % 10 === 0 ? 3 : 1))
  const direction = () => normalized(Array.from(scale, (s) => s * gauss()))
  const common = direction()
  const centres = Array.from({ length: clusters }, direction)
  return {
    next() {
      const own = direction()
      const centre = centres[Math.floor(random() * clusters)] as Float32Array
      const isAlone = random() < 0.05
      const vector = normalized(
        own.map((x, i) => x + (isAlone ? 0 : (centre[i] as number)) + (common[i] as number)),
      )
      return { id: uuidv7(), vector, code: codeOf(vector, undefined) }
    },
  }
}
