-- The prefixes that are loaded most.
-- Reads z{tenant}, z{tenant}pages.
-- KEYS: z{tenant}, z{tenant}pages
-- ARGV: how many
-- Returns msgpack, a list of {prefix, loads as a string, pages as a string, or false}.
local found = redis.call('ZREVRANGE', KEYS[1], 0, ARGV[1] - 1, 'WITHSCORES')
local rows = {}
for n = 1, #found, 2 do
  rows[#rows + 1] = {found[n], found[n + 1], redis.call('HGET', KEYS[2], found[n])}
end
return cmsgpack.pack(rows)
