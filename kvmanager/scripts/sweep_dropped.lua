-- Nothing is left of media and of older epochs: processes may join on those media again.
-- Reads and writes n{tag}.
-- KEYS: n{tag}, as in fenced
-- ARGV: media (8 bytes each), the epoch below which no page is left, as in fenced
-- Returns as in fenced, or 'K'.
local known = redis.call('HMGET', KEYS[1], 'dropping', 'purged')
local dropping, rest = known[1] or '', {}
for m = 1, #dropping, 8 do
  local id = string.sub(dropping, m, m + 7)
  if not listed(ARGV[1], id) then rest[#rest + 1] = id end
end
if #rest * 8 ~= #dropping then redis.call('HSET', KEYS[1], 'dropping', table.concat(rest)) end
if (tonumber(known[2]) or 0) < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], 'purged', ARGV[2])
end
return 'K'
