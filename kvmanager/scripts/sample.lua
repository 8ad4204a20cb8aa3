-- Keep a sample of a tenant's sums in each of its streams whose last one is old enough.
-- Reads and writes h{tenant}<step>, which end by themselves when nothing is added any more.
-- KEYS: h{tenant}<step> of each resolution, the lease
-- ARGV: sample, then step (s) and length of each stream, the lease's value
-- Returns 'K' and in how many it was kept; 'F': the lease is lost.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = 0
for n = 1, #KEYS - 1 do
  local step, length = tonumber(ARGV[2 * n]), tonumber(ARGV[2 * n + 1])
  local last = redis.call('XREVRANGE', KEYS[n], '+', '-', 'COUNT', 1)[1]
  -- a tenth of a step early is in time, or one sample in two would be missed
  if not last or now - tonumber(string.match(last[1], '^%d+')) >= step * 900 then
    redis.call('XADD', KEYS[n], 'MAXLEN', length, '*', 's', ARGV[1])
    redis.call('EXPIRE', KEYS[n], step * length)
    kept = kept + 1
  end
end
return 'K' .. kept
