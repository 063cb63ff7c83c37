-- Books what one gateway replica reports, and gives what it needs, once for each number of a report.
-- KEYS: of the replica, then one for each limit. ARGV[1]: {replica, number, entries}, as `RedisStore` packs them.
-- An answer is {amount, level, wait_s} for each limit. Time is the server's own; what is here may be lost at any moment.
local FORGET_S, KEEP_S, SEAT_WAIT_S = 4, 3600, 1
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local message = cmsgpack.unpack(ARGV[1])
local last = redis.call('GET', KEYS[1])
if last and cmsgpack.unpack(last).number == message.number then
  return cmsgpack.pack(cmsgpack.unpack(last).answers) -- the answer was lost on its way
end

local function seats(key, entry)
  local held, free = redis.call('HGETALL', key), entry.capacity - entry.held
  for i = 1, #held, 2 do
    local count, at = string.match(held[i + 1], '(%S+) (%S+)')
    if now - at > FORGET_S then redis.call('HDEL', key, held[i])
    elseif held[i] ~= message.replica then free = free - count end
  end
  local amount = free >= entry.needed and math.max(0, math.min(entry.needed + entry.wanted, free)) or 0
  redis.call('HSET', key, message.replica, string.format('%.17g %.6f', entry.held + amount, now))
  redis.call('EXPIRE', key, KEEP_S)
  return {amount, free - amount, free < entry.needed and SEAT_WAIT_S or 0}
end

local function rate(key, entry)
  local known = redis.call('HMGET', key, 'level', 'at')
  local level, at = tonumber(known[1]) or entry.start, tonumber(known[2]) or now
  local function filled(by) return level < entry.capacity and math.min(entry.capacity, level + by) or level end
  level = filled(entry.rate * math.max(0, now - at))
  level = math.min(filled(entry.returned) - entry.drawn, entry.capacity)
  local amount, wait_s = entry.needed, 0
  local missing = math.min(amount, entry.capacity) - level
  if amount > 0 and missing > 0 then
    amount, wait_s = 0, missing / entry.rate
  else
    amount = amount + math.min(entry.wanted, math.max(0, level - amount) / entry.parts)
  end
  level = level - amount
  redis.call('HSET', key, 'level', string.format('%.17g', level), 'at', string.format('%.6f', now))
  redis.call('EXPIRE', key, KEEP_S + math.ceil((entry.capacity - level) / entry.rate))
  return {amount, level, wait_s}
end

local answers = {}
for place, entry in ipairs(message.entries) do
  answers[place] = (entry.rate > 0 and rate or seats)(KEYS[place + 1], entry)
end
redis.call('SET', KEYS[1], cmsgpack.pack({number = message.number, answers = answers}), 'EX', KEEP_S)
return cmsgpack.pack(answers)
