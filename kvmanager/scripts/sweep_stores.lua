-- Forget stores whose process is gone and whose last heartbeat is long ago, and those on media that are
-- being dropped, fifty at a time. A store that is opened again after that announces all its pages.
-- Listeners are told of each store whose process is gone, once: the eighth part of its record says so
-- until the next heartbeat.
-- Reads and writes s{tag}, q{tag}, x{tag}, b{tag}<store>; reads n{tag} and r{tag}<process>; tells listeners.
-- KEYS: n{tag}, s{tag}, q{tag}, x{tag}, as in fenced
-- ARGV: cursor, how long a store of a private, a shared medium outlives its process (ms), tag, as in
--       fenced
-- Returns as in fenced, or msgpack, a map: cursor ('0': done), dropped, kept: the media of stores that
--         stay (8 bytes each).
local page = redis.call('HSCAN', KEYS[2], ARGV[1], 'COUNT', 50)
local dropped, kept = 0, {}
local known = redis.call('HMGET', KEYS[1], 'events_until', 'dropping')
local heard, dropping = known[1], known[2] or ''
for n = 1, #page[2], 2 do
  local store = page[2][n]
  local ok, record = pcall(cmsgpack.unpack, page[2][n + 1])
  local dead = not ok or type(record) ~= 'table'
  if not dead then
    local medium = tostring(record[2])
    local about = redis.call('HGET', KEYS[1], 'm:' .. medium)
    local said, place = pcall(cmsgpack.unpack, about or '')
    local private = not about or said and type(place) == 'table' and place[2] == false
    local gone = redis.call('EXISTS', 'r' .. ARGV[4] .. tostring(record[1])) == 0
    dead = gone and absent(record[4], private and ARGV[2] or ARGV[3]) or listed(dropping, medium)
    if heard and gone and not record[8] then
      for i, blank in ipairs({'', '', 0}) do record[i + 4] = record[i + 4] or blank end
      record[8] = true
      redis.call('HSET', KEYS[2], store, cmsgpack.pack(record))
      tell(KEYS[1], heard, 'kind', 'lost', 'medium', medium, 'store', store,
        'process', tostring(record[1]))
    end
    if not dead and #medium == 8 then kept[medium] = true end
  end
  if dead then
    for key = 2, 4 do redis.call('HDEL', KEYS[key], store) end
    redis.call('DEL', 'b' .. ARGV[4] .. store)
    dropped = dropped + 1
  end
end
local media = {}
for medium in pairs(kept) do media[#media + 1] = medium end
return cmsgpack.pack({cursor = page[1], dropped = dropped, kept = table.concat(media)})
