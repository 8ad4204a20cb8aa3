-- Forget stores whose process is gone and whose last heartbeat is long ago, fifty at a time. A store
-- that is opened again after that announces all its pages. Listeners are told of each store whose
-- process is gone, once: the eighth part of its record says so until the next heartbeat.
-- Reads and writes s{tag}, q{tag}, x{tag}, b{tag}<store>; reads n{tag} and r{tag}<process>; tells listeners.
-- KEYS: s{tag}, q{tag}, n{tag}, x{tag}, as in fenced
-- ARGV: tag, cursor, how long a store of a private, a shared medium outlives its process (ms), as in
--       fenced
-- Returns as in fenced, or msgpack, a map: cursor ('0': done), dropped.
local seconds = tonumber(redis.call('TIME')[1])
local page = redis.call('HSCAN', KEYS[1], ARGV[2], 'COUNT', 50)
local dropped = 0
local heard = redis.call('HGET', KEYS[3], 'events_until')
for n = 1, #page[2], 2 do
  local store = page[2][n]
  local ok, record = pcall(cmsgpack.unpack, page[2][n + 1])
  local dead = not ok or type(record) ~= 'table'
  if not dead then
    local about = redis.call('HGET', KEYS[3], 'm:' .. tostring(record[2]))
    local known, medium = pcall(cmsgpack.unpack, about or '')
    local private = not about or known and type(medium) == 'table' and medium[2] == false
    local limit = tonumber(private and ARGV[3] or ARGV[4]) / 1000
    local gone = redis.call('EXISTS', 'r' .. ARGV[1] .. tostring(record[1])) == 0
    dead = gone and seconds - (tonumber(record[4]) or 0) > limit
    if heard and gone and not record[8] then
      for i, blank in ipairs({'', '', 0}) do record[i + 4] = record[i + 4] or blank end
      record[8] = true
      redis.call('HSET', KEYS[1], store, cmsgpack.pack(record))
      tell(KEYS[3], heard, 'kind', 'lost', 'medium', tostring(record[2]), 'store', store,
        'process', tostring(record[1]))
    end
  end
  if dead then
    redis.call('HDEL', KEYS[1], store)
    redis.call('HDEL', KEYS[2], store)
    redis.call('HDEL', KEYS[4], store)
    redis.call('DEL', 'b' .. ARGV[1] .. store)
    dropped = dropped + 1
  end
end
return cmsgpack.pack({cursor = page[1], dropped = dropped})
