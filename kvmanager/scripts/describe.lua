-- What is known of a namespace.
-- Reads n{tag}, s{tag}, x{tag}, y{tag}.
-- KEYS: n{tag}, s{tag}, x{tag}, y{tag}
-- Returns msgpack, a map: the fields that are named below, as they are; stores, limited and
--         pins (how many), media (of the first 1,024: id, record, last heartbeat, pages); empty if
--         the namespace is unknown.
local names = KEYS[1]
local wanted = {'encoding', 'epoch', 'media', 'hits', 'mode', 'ttl_ms', 'tenant_mode',
  'tenant_ttl_ms', 'seen'}
local known = redis.call('HMGET', names, unpack(wanted))
if not known[1] then return cmsgpack.pack({}) end
local found = {}
for n = 1, #wanted do found[wanted[n]] = known[n] end
local media, rows = known[3] or '', {}
local here = 'k:' .. (known[2] or '0') .. '.'
for first = 1, math.min(#media, 8192), 2048 do
  local ids, asked = {}, {}
  for m = first, math.min(first + 2047, #media, 8192), 8 do
    local id, n = string.sub(media, m, m + 7), #asked
    ids[#ids + 1] = id
    asked[n + 1], asked[n + 2], asked[n + 3] = 'm:' .. id, 'b:' .. id, here .. id
  end
  local about = redis.call('HMGET', names, unpack(asked))
  for n, id in ipairs(ids) do
    rows[#rows + 1] = {id, about[3 * n - 2], about[3 * n - 1], about[3 * n]}
  end
end
found.media = rows
found.stores = redis.call('HLEN', KEYS[2])
found.limited = redis.call('HLEN', KEYS[3])
found.pins = redis.call('HLEN', KEYS[4])
return cmsgpack.pack(found)
