-- Which media of a namespace nobody has been seen on for long: no longer listed, to be dropped.
-- Reads and writes n{tag}; tells listeners.
-- KEYS: n{tag}
-- ARGV: how long a private, a shared medium outlives its last process (ms)
-- Returns msgpack, a map: epoch, purged (epochs below hold no page), media, dropping (8 bytes each),
--         buckets (<epoch>.<medium> and how many, of what is to be unlinked); empty if the namespace is
--         unknown.
local names = KEYS[1]
local known = redis.call('HMGET', names, 'epoch', 'purged', 'media', 'dropping', 'events_until')
if not known[1] then return cmsgpack.pack({}) end
local media, dropping = known[3] or '', known[4] or ''
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
    tell(names, known[5], 'kind', 'forgotten', 'medium', id)
  else
    live[#live + 1] = id
  end
end
local listed = table.concat(live)
if listed ~= media then redis.call('HSET', names, 'media', listed, 'dropping', dropping) end
local epoch, purged = tonumber(known[1]) or 0, tonumber(known[2]) or 0
local buckets = {}
for old = purged, epoch do
  local ids = old < epoch and listed .. dropping or dropping
  for m = 1, #ids, 8 do
    local here = string.format('%.0f', old) .. '.' .. string.sub(ids, m, m + 7)
    buckets[#buckets + 1] = {here, tonumber(redis.call('HGET', names, 'f:' .. here) or '4096') or 4096}
  end
end
return cmsgpack.pack({
  buckets = buckets,
  epoch = epoch,
  purged = purged,
  media = listed,
  dropping = dropping,
})
