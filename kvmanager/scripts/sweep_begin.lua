-- What there is to sweep in a namespace. After a long time without a sweep the registry was away, or
-- nobody was there: absences count from now on.
-- Reads and writes n{tag}.
-- KEYS: n{tag}, as in fenced
-- ARGV: what is a long time (ms), as in fenced
-- Returns as in fenced, or msgpack, a map: epoch, media, dropping (8 bytes each); empty if the
--         namespace is unknown.
local names = KEYS[1]
local known = redis.call('HMGET', names, 'epoch', 'media', 'dropping', 'looked', 'back')
if not known[1] then return cmsgpack.pack({}) end
local seconds = tonumber(redis.call('TIME')[1])
if seconds - (tonumber(known[4] or nil) or 0) > ARGV[1] / 1000
  or (tonumber(known[5] or nil) or 0) > seconds then -- by a clock that was set back since
  redis.call('HSET', names, 'back', seconds)
end
redis.call('HSET', names, 'looked', seconds)
return cmsgpack.pack({
  epoch = tonumber(known[1]) or 0, media = known[2] or '', dropping = known[3] or ''})
