-- What a namespace has of its tenant's settings: mode, time to live, and the stores' shares of the
-- quota.
-- Reads and writes n{tag}; rewrites x{tag}.
-- KEYS: n{tag}, x{tag}, as in fenced
-- ARGV: mode, time to live (ms), '' for none; msgpack, a list: stores and their limits (bytes); as in
--       fenced
-- Returns as in fenced, or 1; 0 if the namespace is unknown.
if redis.call('HEXISTS', KEYS[1], 'fingerprint') == 0 then return 0 end
for n, name in ipairs({'tenant_mode', 'tenant_ttl_ms'}) do
  if ARGV[n] == '' then
    redis.call('HDEL', KEYS[1], name)
  else
    redis.call('HSET', KEYS[1], name, ARGV[n])
  end
end
redis.call('DEL', KEYS[2])
local limits = cmsgpack.unpack(ARGV[3])
for n = 2, #limits, 2 do limits[n] = string.format('%.0f', limits[n]) end
for n = 1, #limits, 1000 do
  redis.call('HSET', KEYS[2], unpack(limits, n, math.min(n + 999, #limits)))
end
return 1
