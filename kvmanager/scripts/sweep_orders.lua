-- Drop modes that were ordered of processes which are gone for long, a hundred at a time. One that
-- lost its way to Redis for a while is still to obey.
-- Reads and writes o{tag}; reads r{tag}<process>.
-- KEYS: o{tag}, as in fenced
-- ARGV: cursor, tag, how long an order outlives its process (ms), as in fenced
-- Returns as in fenced, or msgpack, a map: cursor ('0': done), dropped.
local seconds = tonumber(redis.call('TIME')[1])
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', 100)
local ended = {}
for n = 1, #page[2], 2 do
  local process, given = page[2][n], tonumber(string.match(page[2][n + 1], ' (%d+)$')) or 0
  if seconds - given > tonumber(ARGV[3]) / 1000
    and redis.call('EXISTS', 'r' .. ARGV[2] .. process) == 0 then
    ended[#ended + 1] = process
  end
end
if #ended > 0 then redis.call('HDEL', KEYS[1], unpack(ended)) end
return cmsgpack.pack({cursor = page[1], dropped = #ended})
