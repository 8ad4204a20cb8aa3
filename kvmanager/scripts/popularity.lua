-- Add what processes reported to the prefixes that are loaded most, some reports a call; older loads
-- count less.
-- Reads and writes z{tenant}; rewrites z{tenant}pages (pages by prefix). Reads z{tenant}last (the
-- number of the report that was last added, by process), and replaces it by z{tenant}next, which the
-- calls of one step fill.
-- KEYS: z{tenant}, z{tenant}pages, z{tenant}last, z{tenant}next, the lease
-- ARGV: what a load still counts after this long, how many prefixes are kept, msgpack: a list of
--       {process, number of its report, {prefix, loads, pages, prefix, loads, pages, ...}} of some
--       processes, '1' if those are the last of all that there are, the lease's value
-- Returns 'K' and how many reports were new; 'F': the lease is lost.
local best, pages, last, next = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local most, reports, done = tonumber(ARGV[2]), cmsgpack.unpack(ARGV[3]), ARGV[4] == '1'

local function forget(prefixes)
  for n = 1, #prefixes, 1000 do
    local some = {unpack(prefixes, n, math.min(n + 999, #prefixes))}
    redis.call('ZREM', best, unpack(some))
    redis.call('HDEL', pages, unpack(some))
  end
end

if tonumber(ARGV[1]) < 1 and redis.call('EXISTS', best) == 1 then
  redis.call('ZUNIONSTORE', best, 1, best, 'WEIGHTS', ARGV[1])
  forget(redis.call('ZRANGEBYSCORE', best, '-inf', 0.01))
end
local new, sizes, numbers = 0, {}, {}
for _, report in ipairs(reports) do
  local process, number, hot = report[1], string.format('%.0f', report[2]), report[3]
  local before = redis.call('HGET', next, process) or redis.call('HGET', last, process)
  if before ~= number then
    new = new + 1
    for n = 1, #hot, 3 do
      redis.call('ZINCRBY', best, hot[n + 1], hot[n])
      sizes[#sizes + 1], sizes[#sizes + 2] = hot[n], hot[n + 2]
    end
  end
  numbers[#numbers + 1], numbers[#numbers + 2] = process, number
end
for n = 1, #sizes, 1000 do
  redis.call('HSET', pages, unpack(sizes, n, math.min(n + 999, #sizes)))
end
if #numbers > 0 then redis.call('HSET', next, unpack(numbers)) end
-- between two calls there is room for those that later reports will lift
local surplus = redis.call('ZCARD', best) - (done and most or 2 * most)
if surplus > 0 then forget(redis.call('ZRANGE', best, 0, surplus - 1)) end
if done then
  redis.call('DEL', last)
  if redis.call('EXISTS', next) == 1 then redis.call('RENAME', next, last) end
end
return 'K' .. new
