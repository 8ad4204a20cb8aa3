-- A part of a hash or a set, as it is.
-- Reads the key.
-- KEYS: any of the registry's
-- ARGV: cursor, about how many
-- Returns msgpack, a list: type, time to live (ms; -1: none, -2: no such key), seconds of TIME,
--         cursor ('0': done), found: members, or field, value, ..., each cut after 64 KiB; empty for
--         another type.
local SCANS, LONGEST = {hash = 'HSCAN', set = 'SSCAN'}, 65536
local kind = redis.call('TYPE', KEYS[1]).ok
local page = {'0', {}}
if SCANS[kind] then page = redis.call(SCANS[kind], KEYS[1], ARGV[1], 'COUNT', ARGV[2]) end
local found = page[2]
for n = 1, #found do
  if #found[n] > LONGEST then found[n] = string.sub(found[n], 1, LONGEST) end
end
local seconds = tonumber(redis.call('TIME')[1])
return cmsgpack.pack({kind, redis.call('PTTL', KEYS[1]), seconds, page[1], found})
