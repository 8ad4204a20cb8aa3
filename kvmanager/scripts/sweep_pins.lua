-- Drop pins whose end has passed, a hundred at a time.
-- Reads and writes y{tag}; writes pins of n{tag}.
-- KEYS: y{tag}, n{tag}, as in fenced
-- ARGV: cursor, as in fenced
-- Returns as in fenced, or msgpack, a map: cursor ('0': done), dropped.
local seconds = tonumber(redis.call('TIME')[1])
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', 100)
local ended = {}
for n = 1, #page[2], 2 do
  if (tonumber(page[2][n + 1]) or 0) <= seconds then ended[#ended + 1] = page[2][n] end
end
if #ended > 0 then
  redis.call('HDEL', KEYS[1], unpack(ended))
  redis.call('HSET', KEYS[2], 'pins', redis.call('HLEN', KEYS[1]))
end
return cmsgpack.pack({cursor = page[1], dropped = #ended})
