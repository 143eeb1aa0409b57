// Vectors and their codes. A vector is kept with length 1, so that the cosine of two is their inner product. Its code is
// 2048 signs of the vector turned at random: two vectors at an angle a differ in about 2048 × a/π of them (Charikar 2002),
// with a deviation of 22 at most. What is near by code is then compared exactly.
//
// Turned by (flip signs at random, Walsh-Hadamard transform) twice: any vector in about 50 µs where a matrix of
// random numbers would take 3 ms. Vectors of real models lie in a narrow cone, where most signs agree: the centre of many
// of them is taken off first.

export const codeBits = 2048

/** @throws Error when there is nothing to point with */
export function normalized(values: ArrayLike<number>): Float32Array {
  let sum = 0
  for (let i = 0; i < values.length; i++) sum += (values[i] as number) ** 2
  const length = Math.sqrt(sum)
  if (!(length > 1e-12 && length < Number.POSITIVE_INFINITY)) {
    throw new Error('a vector must have finite numbers that are not all 0')
  }
  return Float32Array.from(values, (value) => value / length)
}

export function innerProduct(a: Float32Array, b: Float32Array): number {
  let [even, odd] = [0, 0]
  const paired = a.length - (a.length % 2)
  for (let i = 0; i < paired; i += 2) {
    even += (a[i] as number) * (b[i] as number)
    odd += (a[i + 1] as number) * (b[i + 1] as number)
  }
  if (paired < a.length) even += (a[paired] as number) * (b[paired] as number)
  return even + odd
}

/** float4, little endian, as all machines that Node runs on have them. */
export const toBytes = (vector: Float32Array): Buffer =>
  Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength)

export function fromBytes(bytes: Uint8Array): Float32Array {
  if (bytes.byteOffset % 4 === 0) {
    return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4)
  }
  return new Float32Array(Uint8Array.from(bytes).buffer)
}

/** The mean of vectors. */
export function centreOf(vectors: Iterable<Float32Array>): Float32Array | undefined {
  let sum: Float64Array | undefined
  let count = 0
  for (const vector of vectors) {
    sum ??= new Float64Array(vector.length)
    for (let i = 0; i < sum.length; i++) sum[i] = (sum[i] as number) + (vector[i] as number)
    count++
  }
  return sum && Float32Array.from(sum, (value) => value / count)
}

/** Hexadecimal, of codeBits bits. */
export function codeOf(vector: Float32Array, centre: Float32Array | undefined): string {
  const size = 2 ** Math.max(1, Math.ceil(Math.log2(vector.length)))
  const code = Buffer.alloc(codeBits / 8)
  for (let done = 0, round = 0; done < codeBits; round++) {
    const turned = turnedBy(vector, centre, size, round)
    const take = Math.min(size, codeBits - done)
    for (let i = 0; i < take; i++, done++) {
      if ((turned[i] as number) > 0)
        code[done >> 3] = (code[done >> 3] as number) | (0x80 >> (done & 7))
    }
  }
  return code.toString('hex')
}

function turnedBy(
  vector: Float32Array,
  centre: Float32Array | undefined,
  size: number,
  round: number,
): Float64Array {
  const turned = new Float64Array(size)
  for (let i = 0; i < vector.length; i++) turned[i] = (vector[i] as number) - (centre?.[i] ?? 0)
  for (let time = 0; time < 2; time++) {
    const signs = signsOf(size, 2 * round + time)
    for (let i = 0; i < size; i++) turned[i] = (turned[i] as number) * (signs[i] as number)
    transform(turned)
  }
  return turned
}

/** Walsh-Hadamard, in place. */
function transform(values: Float64Array): void {
  for (let half = 1; half < values.length; half *= 2) {
    for (let from = 0; from < values.length; from += 2 * half) {
      for (let i = from; i < from + half; i++) {
        const [a, b] = [values[i] as number, values[i + half] as number]
        values[i] = a + b
        values[i + half] = a - b
      }
    }
  }
}

const signsKept = new Map<string, Int8Array>()

/** Always the same: codes of one process are compared with those of another. xorshift32, Marsaglia 2003. */
function signsOf(size: number, no: number): Int8Array {
  const key = `${size} ${no}`
  const kept = signsKept.get(key)
  if (kept !== undefined) return kept
  let state = (0x9e3779b9 ^ Math.imul(no + 1, 0x85ebca6b) ^ size) | 0 || 1
  const signs = Int8Array.from({ length: size }, () => {
    state ^= state << 13
    state ^= state >>> 17
    state ^= state << 5
    return (state >>> 16) & 1 ? 1 : -1
  })
  signsKept.set(key, signs)
  return signs
}
