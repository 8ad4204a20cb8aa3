-- Nothing is left of a medium: processes may join on it again.
-- Reads and writes n{tag}.
-- KEYS: n{tag}
-- ARGV: medium (8 bytes)
-- Returns 'K'.
local dropping = redis.call('HGET', KEYS[1], 'dropping') or ''
local rest = {}
for m = 1, #dropping, 8 do
  local id = string.sub(dropping, m, m + 7)
  if id ~= ARGV[1] then rest[#rest + 1] = id end
end
redis.call('HSET', KEYS[1], 'dropping', table.concat(rest))
return 'K'
