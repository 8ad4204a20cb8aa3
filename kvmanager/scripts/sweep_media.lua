-- Which media of a namespace nobody has been seen on for long: no longer listed, to be dropped.
-- Reads and writes n{tag}; tells listeners.
-- KEYS: n{tag}, as in fenced
-- ARGV: how long a private, a shared medium outlives its last process (ms), as in fenced
-- Returns as in fenced, or msgpack, a map: epoch, media, dropping (8 bytes each); empty if the
--         namespace is unknown.
local names = KEYS[1]
local known = redis.call('HMGET', names, 'epoch', 'media', 'dropping', 'events_until')
if not known[1] then return cmsgpack.pack({}) end
local media, dropping = known[2] or '', known[3] or ''
local seconds = tonumber(redis.call('TIME')[1])
local live = {}
for m = 1, #media, 8 do
  local id = string.sub(media, m, m + 7)
  local about = redis.call('HMGET', names, 'm:' .. id, 'b:' .. id)
  local ok, record = pcall(cmsgpack.unpack, about[1] or '')
  local shared = not ok or type(record) ~= 'table' or record[2]
  local limit = tonumber(shared and ARGV[2] or ARGV[1]) / 1000
  if seconds - (tonumber(about[2]) or 0) > limit then
    dropping = dropping .. id
    redis.call('HDEL', names, 'm:' .. id, 'b:' .. id)
    tell(names, known[4], 'kind', 'forgotten', 'medium', id)
  else
    live[#live + 1] = id
  end
end
local listed = table.concat(live)
if listed ~= media then redis.call('HSET', names, 'media', listed, 'dropping', dropping) end
return cmsgpack.pack({epoch = tonumber(known[1]) or 0, media = listed, dropping = dropping})
