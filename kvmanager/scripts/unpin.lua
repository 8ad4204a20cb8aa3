-- End pins of pages.
-- Reads and writes y{tag}; writes pins of n{tag}.
-- KEYS: y{tag}, n{tag}
-- ARGV: digests; none for all
-- Returns how many were ended.
local before = redis.call('HLEN', KEYS[1])
if before == 0 then return 0 end
if #ARGV == 0 then
  redis.call('UNLINK', KEYS[1])
else
  redis.call('HDEL', KEYS[1], unpack(ARGV))
end
local left = redis.call('HLEN', KEYS[1])
redis.call('HSET', KEYS[2], 'pins', left)
return before - left
