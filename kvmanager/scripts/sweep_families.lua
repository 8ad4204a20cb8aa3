-- Some of the families of pages that are void: of an older epoch, or of a medium that is dropped.
-- Reads n{tag}.
-- KEYS: n{tag}, as in fenced
-- ARGV: cursor, epoch, media that are dropped (8 bytes each), as in fenced
-- Returns as in fenced, or msgpack, a map: cursor ('0': done), families (<epoch>.<medium> and how many
--         buckets).
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', 200)
local epoch, families = tonumber(ARGV[2]), {}
for n = 1, #page[2], 2 do
  local here, old, medium = string.match(page[2][n], '^k:((%d+)%.(.+))$')
  if here and (tonumber(old) < epoch or listed(ARGV[3], medium)) then
    families[#families + 1] = {here, tonumber(redis.call('HGET', KEYS[1], 'f:' .. here) or '4096') or 4096}
  end
end
return cmsgpack.pack({cursor = page[1], families = families})
