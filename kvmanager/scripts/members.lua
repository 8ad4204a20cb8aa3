-- Some of the stores of a namespace, each with what its process says of itself while it is alive.
-- Reads s{tag}, n{tag}, r{tag}<process>.
-- KEYS: s{tag}, n{tag}
-- ARGV: tag, cursor, about how many
-- Returns msgpack, a list: cursor ('0': done), rows of: store, its record, the record of its medium,
--         the record of its process; false for one that is not there.
local page = redis.call('HSCAN', KEYS[1], ARGV[2], 'COUNT', ARGV[3])
local rows, media = {}, {}
for n = 1, #page[2], 2 do
  local store, packed = page[2][n], page[2][n + 1]
  local ok, record = pcall(cmsgpack.unpack, packed)
  if ok and type(record) == 'table' then
    local id = tostring(record[2])
    if media[id] == nil then media[id] = redis.call('HGET', KEYS[2], 'm:' .. id) end
    local alive = redis.call('GET', 'r' .. ARGV[1] .. tostring(record[1]))
    rows[#rows + 1] = {store, packed, media[id], alive}
  end
end
return cmsgpack.pack({page[1], rows})
