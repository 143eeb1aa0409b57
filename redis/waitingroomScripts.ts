// The waiting room's steps on Redis, each atomic. All keys of a match lie in one slot (redis/waitingroom.ts), every script
// is given the same ten, and ARGV[1] is always the match. A step that others must know of goes into a short stream whose
// ids are the numbers of the steps, and is called out on `queue_changes`.

export const keyCount = 10

/** `note` writes one step; its body is JSON. */
const prelude = `
local meta, queue, seats, seen, windows, left, log, turns, lease, told = unpack(KEYS)
local match = ARGV[1]
local function nowUs()
  local t = redis.call('time')
  return t[1] * 1000000 + t[2]
end
local function text(number) return string.format('%.0f', number) end
local function nowMs() return text(math.floor(nowUs() / 1000)) end
local function note(body)
  local n = redis.call('hincrby', meta, 'n', 1)
  redis.call('xadd', log, 'maxlen', '~', 4000, text(n) .. '-0', 'd', body, 'at', nowMs())
  redis.call('publish', 'queue_changes', match)
end
local function noteState()
  local flat = redis.call('hgetall', meta)
  local state = {}
  for i = 1, #flat, 2 do state[flat[i]] = flat[i + 1] end
  note('{"state":' .. cjson.encode(state) .. '}')
end
local function giveUp(user)
  local seat = redis.call('hget', seats, user)
  redis.call('zrem', seen, user)
  if not seat then return 0 end
  redis.call('zrem', queue, user)
  redis.call('hdel', seats, user)
  redis.call('srem', told, seat)
  redis.call('rpush', left, '-' .. seat)
  return 1
end
local function server()
  local info = redis.pcall('info', 'server')
  return type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
end
local function isOfAnother()
  local made, own = redis.call('hget', meta, 'server'), server()
  return made and made ~= '' and own ~= '' and made ~= own
end
local function standing(user, seat, epoch, fresh)
  redis.call('zadd', seen, nowMs(), user)
  local score = redis.call('zscore', queue, user)
  return {'place', seat, text(tonumber(score)), redis.call('zrank', queue, user) + 1, epoch, fresh}
end
`

/** ARGV: match, user, 'join' or 'find'. The score is the time of joining, µs, never the same twice. */
export const joinScript = `${prelude}
local user = ARGV[2]
local m = redis.call('hmget', meta, 'epoch', 'status', 'reason', 'last_us')
if not m[1] then return {'absent'} end
local window = redis.call('hget', windows, user)
if window then return {'window', window, m[1]} end
if m[2] == 'closed' then return {'closed', m[3] or ''} end
local seat = redis.call('hget', seats, user)
if seat then return standing(user, seat, m[1], 0) end
if ARGV[3] ~= 'join' then return {'none'} end
seat = text(redis.call('hincrby', meta, 'seat', 1))
local us = math.max(nowUs(), tonumber(m[4]) + 1)
redis.call('hset', meta, 'last_us', text(us))
redis.call('zadd', queue, text(us), user)
redis.call('hset', seats, user, seat)
return standing(user, seat, m[1], 1)`

/** ARGV: match, user, seat, score. */
export const restoreScript = `${prelude}
local user, seat = ARGV[2], ARGV[3]
local m = redis.call('hmget', meta, 'epoch', 'status', 'reason', 'seat')
if not m[1] then return {'absent'} end
local window = redis.call('hget', windows, user)
if window then return {'window', window, m[1]} end
if m[2] == 'closed' then return {'closed', m[3] or ''} end
local held = redis.call('hget', seats, user)
if held then return standing(user, held, m[1], 0) end
if tonumber(seat) > tonumber(m[4]) then redis.call('hset', meta, 'seat', seat) end
redis.call('zadd', queue, ARGV[4], user)
redis.call('hset', seats, user, seat)
redis.call('rpush', left, '+' .. seat)
return standing(user, seat, m[1], 0)`

/** ARGV: match, user. */
export const leaveScript = `${prelude}
return giveUp(ARGV[2])`

/** ARGV: match, users. Only of those who have a place. */
export const touchScript = `${prelude}
local now = nowMs()
for i = 2, #ARGV do redis.call('zadd', seen, 'xx', now, ARGV[i]) end`

/**
 * ARGV: match, field and value in turn. Nothing where the match is not known; a closed one is changed no more, and its
 * places go.
 */
export const controlScript = `${prelude}
local status = redis.call('hget', meta, 'status')
if not status then return 0 end
if status == 'closed' then return 1 end
redis.call('hset', meta, unpack(ARGV, 2))
if redis.call('hget', meta, 'status') == 'closed' then
  redis.call('unlink', queue, seats, seen, left, told)
  redis.call('hset', meta, 'total_size', 0)
  redis.call('expire', log, 86400)
end
noteState()
return 1`

/** ARGV: match. Everybody who comes later stands behind the last of the lobby. */
export const sealScript = `${prelude}
local m = redis.call('hmget', meta, 'phase', 'seat', 'last_us')
if not m[1] then return {'absent'} end
if m[1] == 'lobby' then
  local base = math.max(nowUs(), tonumber(m[3]))
  redis.call('hset', meta, 'phase', 'drawing', 'lobby_size', m[2], 'drawn_base', text(base),
    'last_us', text(base + tonumber(m[2]) + 1))
  noteState()
end
return redis.call('hmget', meta, 'lobby_size', 'drawn_base')`

/**
 * ARGV: match. A server that was started, or took over, since the match was made may have an older copy of it. Where INFO
 * is refused nobody can know.
 */
export const checkScript = `${prelude}
if redis.call('hexists', meta, 'epoch') == 0 then return 'absent' end
if isOfAnother() then return 'older' end
redis.call('hset', meta, 'server', server())
return 'here'`

/**
 * ARGV: match, then three lists, the length of each before it: users and windows in turn; users and seats in turn of those
 * who had their turn already; the meta fields, field and value in turn. Nothing where the match is there already. The
 * places of an older copy stay, as alive as any, but not those of another phase, which stood in another order.
 */
export const createScript = `${prelude}
local at = 1
local function list()
  local first = at + 2
  at = at + 1 + tonumber(ARGV[at + 1])
  return first, at
end
local old = redis.call('hmget', meta, 'epoch', 'phase', 'seat')
if old[1] and not isOfAnother() then return 0 end
redis.call('del', windows, left, log, turns)
local first, last = list()
for i = first, last, 2 do redis.call('hset', windows, ARGV[i], ARGV[i + 1]) end
first, last = list()
for i = first, last, 2 do
  if redis.call('hget', seats, ARGV[i]) == ARGV[i + 1] then giveUp(ARGV[i]) end
end
first, last = list()
redis.call('hset', meta, unpack(ARGV, first, last))
redis.call('hset', meta, 'server', server())
local m = redis.call('hmget', meta, 'phase', 'status')
if old[2] == m[1] and m[2] ~= 'closed' then
  local seat = text(math.max(tonumber(old[3]), tonumber(redis.call('hget', meta, 'seat'))))
  redis.call('hset', meta, 'seat', seat, 'noted_seat', seat, 'total_size', redis.call('zcard', queue))
  local now = nowMs()
  for _, user in ipairs(redis.call('hkeys', seats)) do redis.call('zadd', seen, now, user) end
else redis.call('del', queue, seats, seen, told) end
redis.call('del', left)
noteState()
return 1`

/**
 * One step of the leader. ARGV: match, leader, life of the lead in ms, how many to let in, until when their windows are
 * open, a session token for each. Takes the lead when nobody has it. Who is let in leaves the queue, has a window and
 * stands in the stream of turns, in one step, and is told of when that is durable; what else changed is told now.
 */
export const tickScript = `${prelude}
local m = redis.call('hmget', meta, 'epoch', 'status', 'phase', 'capacity', 'seat', 'noted_seat')
if not m[1] then return {'absent'} end
local fresh = 0
local holder = redis.call('get', lease)
if not holder then
  redis.call('set', lease, ARGV[2], 'px', ARGV[3])
  fresh = 1
elseif holder == ARGV[2] then redis.call('pexpire', lease, ARGV[3])
else return {'other'} end
local open = redis.call('hlen', windows)
local want = 0
if m[2] == 'active' and m[3] == 'open' then
  want = math.max(0, math.min(tonumber(ARGV[4]), tonumber(m[4]) - open, #ARGV - 5))
end
local users, called = {}, {}
if want > 0 then users = redis.call('zpopmin', queue, want) end
for i = 1, #users, 2 do
  local user, token = users[i], ARGV[5 + (i + 1) / 2]
  local seat = redis.call('hget', seats, user)
  redis.call('hdel', seats, user)
  redis.call('zrem', seen, user)
  redis.call('srem', told, seat)
  redis.call('hset', windows, user,
    cjson.encode({expires_at = ARGV[5], session_token = token, seat = tonumber(seat), pending = true}))
  redis.call('xadd', turns, '*', 'user', user, 'seat', seat, 'token', token)
  called[#called + 1] = seat
end
local moves = redis.call('lrange', left, 0, 4999)
if #moves > 0 then redis.call('ltrim', left, #moves, -1) end
local last = {}
for _, move in ipairs(moves) do last[string.sub(move, 2)] = string.sub(move, 1, 1) end
for _, seat in ipairs(called) do last[seat] = nil end
local gone, back = {}, {}
for seat, sign in pairs(last) do
  local list = sign == '-' and gone or back
  list[#list + 1] = seat
end
local waiting = redis.call('zcard', queue)
if #gone > 0 or #back > 0 or m[5] ~= m[6] then
  redis.call('hset', meta, 'total_size', waiting, 'noted_seat', m[5])
  note('{"lastSeat":' .. m[5] .. ',"left":[' .. table.concat(gone, ',') .. '],"back":['
    .. table.concat(back, ',') .. ']}')
end
return {'leader', fresh, #users / 2, waiting, redis.call('hlen', windows), m[5],
  redis.call('xrange', turns, '-', '+', 'count', 1000)}`

/**
 * ARGV: match, and of each turn that is durable: its id in the stream, user, window, and what others are told: the
 * processes, the channel `queue_events`. A turn is told once.
 */
export const announceScript = `${prelude}
local granted, seatsOf = {}, {}
for i = 2, #ARGV, 5 do
  if redis.call('xdel', turns, ARGV[i]) == 1 then
    redis.call('hset', windows, ARGV[i + 1], ARGV[i + 2])
    granted[#granted + 1] = ARGV[i + 3]
    seatsOf[#seatsOf + 1] = cjson.decode(ARGV[i + 3]).seat
    redis.call('publish', 'queue_events', ARGV[i + 4])
  end
end
if #granted > 0 then
  note('{"left":[' .. table.concat(seatsOf, ',') .. '],"granted":[' .. table.concat(granted, ',')
    .. ']}')
end
return #granted`

/** ARGV: match, and of each window that is over: user, session token, what the processes and the channel are told. */
export const freeScript = `${prelude}
local over = {}
for i = 2, #ARGV, 4 do
  local window = redis.call('hget', windows, ARGV[i])
  if window and cjson.decode(window).session_token == ARGV[i + 1] then
    redis.call('hdel', windows, ARGV[i])
    over[#over + 1] = ARGV[i + 2]
    if ARGV[i + 3] ~= '' then redis.call('publish', 'queue_events', ARGV[i + 3]) end
  end
end
if #over > 0 then note('{"over":[' .. table.concat(over, ',') .. ']}') end
return #over`

/** ARGV: match, for how long without a sign of life in ms, how many at most. */
export const dropScript = `${prelude}
local before = text(tonumber(nowMs()) - tonumber(ARGV[2]))
local users = redis.call('zrangebyscore', seen, '-inf', '(' .. before, 'limit', 0, ARGV[3])
local dropped = 0
for _, user in ipairs(users) do dropped = dropped + giveUp(user) end
return dropped`

/** ARGV: match, of how many in front, for how long without a sign of life in ms. */
export const quietScript = `${prelude}
local before = tonumber(nowMs()) - tonumber(ARGV[3])
local quiet = {}
for i, user in ipairs(redis.call('zrange', queue, 0, ARGV[2] - 1)) do
  local last = redis.call('zscore', seen, user)
  if not last or tonumber(last) < before then
    local seat = redis.call('hget', seats, user)
    if redis.call('sismember', told, seat) == 0 then quiet[#quiet + 1] = {user, seat, i} end
  end
end
return quiet`
