-- Whose claims of one medium have not run out, some at a time.
-- Reads c{tag}<epoch>.<medium>.
-- KEYS: c{tag}<epoch>.<medium>
-- ARGV: cursor, about how many
-- Returns msgpack, a list: cursor ('0': done), tokens.
local t = redis.call('TIME')
local ms = t[1] * 1000 + math.floor(t[2] / 1000)
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local tokens = {}
for n = 1, #page[2], 2 do
  local claim = page[2][n + 1]
  if page[2][n] ~= '' and (tonumber(string.sub(claim, 9)) or 0) > ms then
    tokens[#tokens + 1] = string.sub(claim, 1, 8)
  end
end
return cmsgpack.pack({page[1], tokens})
