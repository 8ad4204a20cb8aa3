-- Some of the pages that are pinned.
-- Reads y{tag}.
-- KEYS: y{tag}
-- ARGV: cursor, about how many
-- Returns msgpack, a list: cursor ('0': done), digests and when each ends (seconds of TIME), without
--         those that have ended.
local seconds = tonumber(redis.call('TIME')[1])
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local found = {}
for n = 1, #page[2], 2 do
  local ends = tonumber(page[2][n + 1]) or 0
  if ends > seconds then found[#found + 1], found[#found + 2] = page[2][n], ends end
end
return cmsgpack.pack({page[1], found})
