-- Of media on which no store is left: those that nobody has been seen on for long are no longer listed,
-- and are to be dropped. Whoever joins one makes it seen, or waits until it is dropped.
-- Reads and writes n{tag}; tells listeners.
-- KEYS: n{tag}, as in fenced
-- ARGV: media (8 bytes each), how long a private, a shared medium outlives its last process (ms), as in
--       fenced
-- Returns as in fenced, or msgpack, a map: media, dropping (8 bytes each): all there are now.
local names = KEYS[1]
local known = redis.call('HMGET', names, 'media', 'dropping', 'events_until')
local media, dropping = known[1] or '', known[2] or ''
local ended = {}
for m = 1, #ARGV[1], 8 do
  local id = string.sub(ARGV[1], m, m + 7)
  local about = redis.call('HMGET', names, 'm:' .. id, 'b:' .. id)
  local ok, record = pcall(cmsgpack.unpack, about[1] or '')
  local shared = not ok or type(record) ~= 'table' or record[2]
  if absent(about[2], shared and ARGV[3] or ARGV[2]) and listed(media, id) then
    ended[id] = true
    dropping = dropping .. id
    redis.call('HDEL', names, 'm:' .. id, 'b:' .. id)
    tell(names, known[3], 'kind', 'forgotten', 'medium', id)
  end
end
if next(ended) then
  local kept = {}
  for m = 1, #media, 8 do
    local id = string.sub(media, m, m + 7)
    if not ended[id] then kept[#kept + 1] = id end
  end
  media = table.concat(kept)
  redis.call('HSET', names, 'media', media, 'dropping', dropping)
end
return cmsgpack.pack({media = media, dropping = dropping})
