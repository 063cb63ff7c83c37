-- What one cluster says about one scope, and what it gets. `serve/limits/store/messages.py` has the fields; an answer
-- is an `Advance`.
-- KEYS: of the store as a whole, then one for each meter, then one for the month if there is `spent`.
-- Time is the server's own. What is here may be lost at any moment: clusters tell what they were told last.

local GAP_S = 3.0     -- in which no cluster at all is heard only if the store was away
local SETTLE_S = 2.5  -- in which every cluster that lives reports at least twice
local FORGET_S = 6.0  -- after which a silent cluster's seats and share go to others: longer than a gap and its end
local KEEP_S = 3600   -- a cluster remembers for 600 s
local STEP_S = 60     -- by which a clock may go back without being taken for another one
local MONTH_S = 40 * 86400
local LEAST = 1e-3    -- weight of a cluster without demand, so that every cluster has some share

local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local message = cmsgpack.unpack(ARGV[1])

local function fetch(key)
  local packed = redis.call('GET', key)
  return packed and cmsgpack.unpack(packed)
end

local function save(key, state, keep_s)
  redis.call('SET', key, cmsgpack.pack(state), 'PX', string.format('%.0f', keep_s * 1000))
end

local function elapsed(since)
  return math.max(0, now - since)
end

local store = fetch(KEYS[1])
if not store or now - store.at > GAP_S or store.at - now > STEP_S then
  store = {began = now}
end
store.at = now
save(KEYS[1], store, KEEP_S)

-- While clusters tell what they drew on their own, more than the capacity may be there: that flowed in meanwhile.
local function flow(state, settling)
  if now > state.at or state.at - now > STEP_S then
    local level = state.level + state.rate * elapsed(state.at)
    if settling or level < state.capacity then
      state.level = level
    else
      state.level = math.max(state.level, state.capacity)
    end
    state.at = now
  end
end

-- The bucket as it was when this cluster was last told of it: its debts, and what has flowed since. What lay in it is
-- forgotten, since nobody knows how much of it was given away.
local function rebuilt(entry)
  return math.min(entry.told, 0) + entry.rate * elapsed(entry.told_at)
end

-- A share grows only by what others are known to have given up: until a cluster reports again, it may have either.
local function share(entry, state, mine, settling)
  local weights, others, known = 0, 0, 0
  for _, each in pairs(state.clusters) do
    if not each.gone then
      weights = weights + math.max(each.demand, LEAST)
      known = known + 1
      if each ~= mine then others = others + math.max(each.share, each.kept) end
    end
  end
  local parts = math.max(message.clusters, known)
  local left = state.rate * (1 - (parts - known) / (2 * parts))
  local fair = math.min(left * math.max(mine.demand, LEAST) / weights, left - others)
  if settling then fair = math.min(fair, entry.share) end
  return math.max(fair, state.rate * 1e-6)
end

local function rate(entry, state, mine, settling)
  if entry.owed > 0 then
    state.level = state.level - entry.owed
  else
    state.level = math.max(state.level, math.min(state.capacity, state.level - entry.owed))
  end
  mine.demand, mine.kept = entry.demand, entry.share
  local amount, wait_s = 0, 0
  if not settling then
    state.level = math.min(state.level, state.capacity)
    local least = math.min(entry.needed, state.capacity)
    if entry.needed > 0 and state.level < least then
      wait_s = (least - state.level) / state.rate
    else
      local busy = 0
      for _, each in pairs(state.clusters) do
        if each.demand > 0 then busy = busy + 1 end
      end
      local left = math.max(0, state.level - entry.needed)
      amount = entry.needed + math.min(entry.wanted, left / math.max(1, busy))
      state.level = state.level - amount
    end
  end
  mine.share = share(entry, state, mine, settling)
  return {amount, state.level, mine.share, wait_s, settling}
end

local function seats(entry, state, mine, settling)
  mine.out = entry.claimed
  local free = state.capacity
  for _, each in pairs(state.clusters) do free = free - each.out end
  local amount, wait_s = 0, 0
  if not settling then
    if free >= entry.needed then
      amount = entry.needed + math.max(0, math.min(entry.wanted, free - entry.needed))
    elseif entry.needed > 0 then
      wait_s = 1 -- nobody knows when a request ends
    end
    mine.out = mine.out + amount
  end
  return {amount, free - amount, 0, wait_s, settling}
end

local function answer(key, entry)
  local state = fetch(key)
  local mine = state and state.clusters[message.member]
  if mine and mine.number == message.number then
    return mine.answer -- it was lost on its way
  end
  local lost = entry.prev > 0 and not (mine and mine.number == entry.prev)
  local settles = lost and now + SETTLE_S or state and state.settles or 0
  local settling = now - store.began < SETTLE_S or now < settles
  if state then
    flow(state, settling)
    if lost then state.level = math.min(state.level, rebuilt(entry)) end
  else
    state = {level = lost and rebuilt(entry) or entry.capacity, at = now, clusters = {}}
  end
  state.settles, state.rate, state.capacity = settles, entry.rate, entry.capacity
  mine = mine or {demand = 0, share = 0, kept = 0, out = 0}
  mine.at, mine.number, mine.gone = now, message.number, nil
  state.clusters[message.member] = mine
  for member, each in pairs(state.clusters) do
    if not settling and elapsed(each.at) > FORGET_S then -- its number stays: it may be back
      each.gone, each.demand, each.share, each.kept, each.out = true, 0, 0, 0, 0
    end
    if elapsed(each.at) > KEEP_S then state.clusters[member] = nil end
  end
  mine.answer = (entry.claimed and seats or rate)(entry, state, mine, settling)
  save(key, state, KEEP_S + (entry.claimed and 0 or math.max(0, (state.capacity - state.level) / state.rate)))
  return mine.answer
end

local answers = {}
for place, entry in ipairs(message.entries) do
  answers[place] = answer(KEYS[place + 1], entry)
end

local total = 0
local spent = message.spent
if spent then
  local key = KEYS[#KEYS]
  if spent.cost > tonumber(redis.call('HGET', key, spent.book) or 0) then
    redis.call('HSET', key, spent.book, string.format('%.17g', spent.cost))
  end
  redis.call('EXPIRE', key, MONTH_S)
  for _, cost in ipairs(redis.call('HVALS', key)) do total = total + tonumber(cost) end
end
return cmsgpack.pack({at = now, answers = answers, spent = total})
