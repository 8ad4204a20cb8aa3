-- Add what processes reported to the prefixes that are loaded most; older loads count less.
-- Reads and writes z{tenant}; rewrites z{tenant}pages (pages by prefix) and z{tenant}last (the
-- number of the report that was last added, by process).
-- KEYS: z{tenant}, z{tenant}pages, z{tenant}last, the lease
-- ARGV: what a load still counts after this long, how many prefixes are kept, msgpack: a list of
--       {process, number of its report, {prefix, loads, pages, prefix, loads, pages, ...}} of all
--       processes that there are, the lease's value
-- Returns 'K' and how many reports were new; 'F': the lease is lost.
local best, pages, last = KEYS[1], KEYS[2], KEYS[3]
local most, reports = tonumber(ARGV[2]), cmsgpack.unpack(ARGV[3])
if redis.call('EXISTS', best) == 1 then
  redis.call('ZUNIONSTORE', best, 1, best, 'WEIGHTS', ARGV[1])
  redis.call('ZREMRANGEBYSCORE', best, '-inf', 0.01)
end
local new = 0
local known = {}
for _, report in ipairs(reports) do
  known[report[1]] = redis.call('HGET', last, report[1])
end
redis.call('DEL', last)
for _, report in ipairs(reports) do
  local process, number, hot = report[1], string.format('%.0f', report[2]), report[3]
  if known[process] ~= number then
    new = new + 1
    for n = 1, #hot, 3 do
      redis.call('ZINCRBY', best, hot[n + 1], hot[n])
      redis.call('HSET', pages, hot[n], hot[n + 2])
    end
  end
  redis.call('HSET', last, process, number)
end
local surplus = redis.call('ZCARD', best) - most
if surplus > 0 then redis.call('ZREMRANGEBYRANK', best, 0, surplus - 1) end
if redis.call('HLEN', pages) > 2 * most then
  for _, prefix in ipairs(redis.call('HKEYS', pages)) do
    if not redis.call('ZSCORE', best, prefix) then redis.call('HDEL', pages, prefix) end
  end
end
return 'K' .. new
