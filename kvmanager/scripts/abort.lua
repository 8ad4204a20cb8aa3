-- Give up claims that this token still holds.
-- Reads and writes c{tag}<epoch>.<medium>.
-- KEYS: c{tag}<epoch>.<medium>
-- ARGV: digests, token
-- Returns 'K'.
local fields, mine = {}, {}
for i = 1, #ARGV[1], 16 do fields[#fields + 1] = string.sub(ARGV[1], i, i + 15) end
if #fields == 0 then return 'K' end
local held = redis.call('HMGET', KEYS[1], unpack(fields))
for n = 1, #fields do
  if held[n] and string.sub(held[n], 1, 8) == ARGV[2] then mine[#mine + 1] = fields[n] end
end
if #mine > 0 then redis.call('HDEL', KEYS[1], unpack(mine)) end
return 'K'
