-- Forget stores whose process is gone and whose last heartbeat is long ago, fifty at a time. A store
-- that is opened again after that announces all its pages.
-- Reads and writes s{tag}, q{tag}, b{tag}<store>; reads n{tag} and r{tag}<process>.
-- KEYS: s{tag}, q{tag}, n{tag}
-- ARGV: tag, cursor, how long a store of a private, a shared medium outlives its process (ms)
-- Returns msgpack, a map: cursor ('0': done), dropped.
local seconds = tonumber(redis.call('TIME')[1])
local page = redis.call('HSCAN', KEYS[1], ARGV[2], 'COUNT', 50)
local dropped = 0
for n = 1, #page[2], 2 do
  local store = page[2][n]
  local ok, record = pcall(cmsgpack.unpack, page[2][n + 1])
  local dead = not ok or type(record) ~= 'table'
  if not dead then
    local about = redis.call('HGET', KEYS[3], 'm:' .. tostring(record[2]))
    local known, medium = pcall(cmsgpack.unpack, about or '')
    local private = not about or known and type(medium) == 'table' and medium[2] == false
    local limit = tonumber(private and ARGV[3] or ARGV[4]) / 1000
    dead = seconds - (tonumber(record[4]) or 0) > limit
      and redis.call('EXISTS', 'r' .. ARGV[1] .. tostring(record[1])) == 0
  end
  if dead then
    redis.call('HDEL', KEYS[1], store)
    redis.call('HDEL', KEYS[2], store)
    redis.call('DEL', 'b' .. ARGV[1] .. store)
    dropped = dropped + 1
  end
end
return cmsgpack.pack({cursor = page[1], dropped = dropped})
