// When a schedule fires next, as pure arithmetic: every so many ms, counted from the epoch so that all processes agree,
// or by cron in a time zone. A wall-clock time that cron names fires once on its day, whatever daylight saving does: one
// that is skipped fires at the first moment after the gap, one that comes twice fires the first time. Only where every
// hour is meant does each hour that passes count, also the one that comes again.

export type Schedule =
  | { everyMs: number }
  | {
      /** minute hour day-of-month month day-of-week; lists, ranges, steps, JAN-DEC, SUN-SAT (0 and 7 are Sunday). */
      cron: string
      /** IANA name, such as Europe/Berlin. */
      timeZone: string
    }

/**
 * The first firing later than `after`.
 * @throws when the schedule cannot be read or never fires
 */
export function nextFiring(schedule: Schedule, after: Date): Date {
  if ('cron' in schedule) {
    const offsetAt = offsets(schedule.timeZone)
    return new Date(nextByCron(parseCron(schedule.cron), offsetAt, after.getTime()))
  }
  const { everyMs } = schedule
  if (!Number.isInteger(everyMs) || everyMs < 1) {
    throw new Error(`a schedule's everyMs must be a whole number above 0 (it is ${everyMs})`)
  }
  return new Date((Math.floor(after.getTime() / everyMs) + 1) * everyMs)
}

/**
 * The firing to wait for at `now`, when the last one was at `firedAt`. A clock that was set back a little repeats no
 * firing; one that was set back for longer than the interval, or by cron for three hours (Vixie's cron), is followed.
 */
export function firingAfter(schedule: Schedule, now: Date, firedAt: Date | null): Date {
  const aheadMs = firedAt ? firedAt.getTime() - now.getTime() : 0
  const isRepeat = aheadMs > 0 && aheadMs < ('cron' in schedule ? 3 * hourMs : schedule.everyMs)
  return nextFiring(schedule, firedAt && isRepeat ? firedAt : now)
}

const minuteMs = 60_000
const hourMs = 3_600_000
const dayMs = 86_400_000
/** From 29 February 2096 to the next one are eight years. */
const searchDays = 9 * 366

type OffsetAt = (at: number) => number

/**
 * Between two changes of the zone's offset local time runs evenly, so each such stretch is searched in local time. It
 * begins a day early, to know which local times came already.
 */
function nextByCron(cron: Cron, offsetAt: OffsetAt, after: number): number {
  const first = Math.floor(after / minuteMs) * minuteMs + minuteMs
  let from = first - dayMs
  let seen = Number.NEGATIVE_INFINITY
  for (;;) {
    const offset = offsetAt(from)
    const begin = Math.max(from, first) + offset
    const match = nextMatch(cron, cron.everyHour ? begin : Math.max(begin, seen))
    const change = firstChange(offsetAt, from, match - offset)
    if (change === undefined) return match - offset
    const isSkipped = match < change + offsetAt(change)
    if (isSkipped && change >= first && !cron.everyHour) return change
    seen = Math.max(seen, change + offset)
    from = change
  }
}

/** The first minute up to `to` whose offset is another than that of `from`. No zone changes it twice in a day. */
function firstChange(offsetAt: OffsetAt, from: number, to: number): number | undefined {
  const offset = offsetAt(from)
  for (let low = from; low < to; low += dayMs) {
    let high = Math.min(low + dayMs, to)
    if (offsetAt(high) === offset) continue
    while (high - low > minuteMs) {
      const middle = Math.floor((low + high) / 2 / minuteMs) * minuteMs
      if (offsetAt(middle) === offset) low = middle
      else high = middle
    }
    return high
  }
  return undefined
}

/** Local times are told as if they were UTC. */
function nextMatch({ text, minutes, hours, isDay }: Cron, from: number): number {
  const today = Math.floor(from / dayMs) * dayMs
  for (let day = today; day <= today + searchDays * dayMs; day += dayMs) {
    if (!isDay(new Date(day))) continue
    for (const hour of hours) {
      for (const minute of minutes) {
        const at = day + hour * hourMs + minute * minuteMs
        if (at >= from) return at
      }
    }
  }
  throw new Error(`the cron ${JSON.stringify(text)} never fires: no month has such a day`)
}

const formats = new Map<string, Intl.DateTimeFormat>()

function offsets(timeZone: string): OffsetAt {
  let format = formats.get(timeZone)
  if (format === undefined) {
    try {
      format = new Intl.DateTimeFormat('en', { timeZone, timeZoneName: 'longOffset' })
    } catch (cause) {
      const name = JSON.stringify(timeZone)
      throw new Error(`${name} is no time zone: an IANA name such as Europe/Berlin is meant`, {
        cause,
      })
    }
    formats.set(timeZone, format)
  }
  const told = format
  return (at) => {
    const [, sign, hours, minutes] = /GMT([+-])(\d\d):(\d\d)/.exec(told.format(at)) ?? []
    const ms = Number(hours ?? 0) * hourMs + Number(minutes ?? 0) * minuteMs
    return sign === '-' ? -ms : ms
  }
}

type Cron = {
  text: string
  /** Ascending. */
  minutes: number[]
  hours: number[]
  everyHour: boolean
  isDay(date: Date): boolean
}

type Field = { name: string; low: number; high: number; names?: readonly string[] }

const fields = [
  { name: 'minute', low: 0, high: 59 },
  { name: 'hour', low: 0, high: 23 },
  { name: 'day of month', low: 1, high: 31 },
  {
    name: 'month',
    low: 1,
    high: 12,
    names: 'jan feb mar apr may jun jul aug sep oct nov dec'.split(' '),
  },
  { name: 'day of week', low: 0, high: 7, names: 'sun mon tue wed thu fri sat'.split(' ') },
] as const satisfies readonly Field[]

function parseCron(text: string): Cron {
  const parts = text.trim().split(/\s+/)
  if (parts.length !== fields.length) {
    const right = fields.map(({ name }) => name).join(', ')
    throw new Error(
      `the cron ${JSON.stringify(text)} has ${parts.length} fields, not five: ${right}`,
    )
  }
  const read = (i: number) => parseField(text, parts[i] ?? '', fields[i] as Field)
  const [minutes, hours, days, months] = [read(0), read(1), read(2), read(3)]
  const weekdays = read(4).map((day) => day % 7)
  // As in Vixie's cron: where both kinds of day are named, either will do.
  const either = !parts[2]?.startsWith('*') && !parts[4]?.startsWith('*')
  const isDay = (date: Date) => {
    if (!months.includes(date.getUTCMonth() + 1)) return false
    const byMonth = days.includes(date.getUTCDate())
    const byWeek = weekdays.includes(date.getUTCDay())
    return either ? byMonth || byWeek : byMonth && byWeek
  }
  return { text, minutes, hours, everyHour: hours.length === 24, isDay }
}

function parseField(cron: string, text: string, { name, low, high, names = [] }: Field): number[] {
  const wrong = () =>
    new Error(
      `the ${name} ${JSON.stringify(text)} of the cron ${JSON.stringify(cron)} is not understood: ` +
        `${low} to ${high}, as in ${low}, ${low}-${high}, */2 or ${low}-${high}/2, is meant`,
    )
  const value = (word: string) => {
    const index = names.indexOf(word.toLowerCase())
    const number = index >= 0 ? index + low : /^\d{1,2}$/.test(word) ? Number(word) : Number.NaN
    if (number >= low && number <= high) return number
    throw wrong()
  }
  const found = text.split(',').flatMap((part) => {
    const [, star, first, last, step] = /^(?:(\*)|(\w+)(?:-(\w+))?)(?:\/(\d+))?$/.exec(part) ?? []
    const from = star ? low : value(first ?? '')
    const to = star ? high : value(last ?? first ?? '')
    const by = Number(step ?? 1)
    if (from > to || by < 1 || (step && !star && !last)) throw wrong()
    return Array.from({ length: Math.floor((to - from) / by) + 1 }, (_, i) => from + i * by)
  })
  return [...new Set(found)].sort((a, b) => a - b)
}
