-- Drop claims that have run out, a hundred at a time.
-- Reads and writes c{tag}<epoch>.<medium>.
-- KEYS: c{tag}<epoch>.<medium>, as in fenced
-- ARGV: cursor, as in fenced
-- Returns as in fenced, or msgpack, a map: cursor ('0': done), dropped.
local t = redis.call('TIME')
local ms = t[1] * 1000 + math.floor(t[2] / 1000)
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', 100)
local dead = {}
for n = 1, #page[2], 2 do
  local field, claim = page[2][n], page[2][n + 1]
  if field ~= '' and (tonumber(string.sub(claim, 9)) or 0) <= ms then dead[#dead + 1] = field end
end
if #dead > 0 then redis.call('HDEL', KEYS[1], unpack(dead)) end
return cmsgpack.pack({cursor = page[1], dropped = #dead})
