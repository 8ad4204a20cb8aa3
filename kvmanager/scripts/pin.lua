-- Pin pages: their owners keep them until then, or longer where they are pinned for longer.
-- Reads and writes y{tag}; writes pins of n{tag}, by which removals know that there are any.
-- KEYS: y{tag}, n{tag}
-- ARGV: for how long (s), how many there may be, digests
-- Returns how many there are now; -1 where that would be too many: nothing is done.
local until_s = tonumber(redis.call('TIME')[1]) + tonumber(ARGV[1])
local ends = string.format('%.0f', until_s)
local more, writes, met = redis.call('HLEN', KEYS[1]), {}, {}
for n = 3, #ARGV, 1000 do
  local some = {unpack(ARGV, n, math.min(n + 999, #ARGV))}
  for k, given in ipairs(redis.call('HMGET', KEYS[1], unpack(some))) do
    if not met[some[k]] then
      met[some[k]] = true
      if not given then more = more + 1 end
      if (tonumber(given or '') or 0) < until_s then
        writes[#writes + 1], writes[#writes + 2] = some[k], ends
      end
    end
  end
end
if more > tonumber(ARGV[2]) then return -1 end
for n = 1, #writes, 1000 do
  redis.call('HSET', KEYS[1], unpack(writes, n, math.min(n + 999, #writes)))
end
redis.call('HSET', KEYS[2], 'pins', more)
return more
