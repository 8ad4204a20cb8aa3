-- Drop modes that were ordered of processes which are absent for long, a hundred at a time. One that
-- lost its way to Redis for a while is still to obey. An order bears the time of its process's last
-- heartbeat (a minute too old at most), or when it was given.
-- Reads n{tag}; reads and writes o{tag}; reads r{tag}<process>.
-- KEYS: n{tag}, o{tag}, as in fenced
-- ARGV: cursor, how long an order outlives its process (ms), tag, as in fenced
-- Returns as in fenced, or msgpack, a map: cursor ('0': done), dropped.
local page = redis.call('HSCAN', KEYS[2], ARGV[1], 'COUNT', 100)
local ended = {}
for n = 1, #page[2], 2 do
  local process, seen = page[2][n], string.match(page[2][n + 1], ' (%d+)$')
  if absent(seen, ARGV[2]) and redis.call('EXISTS', 'r' .. ARGV[3] .. process) == 0 then
    ended[#ended + 1] = process
  end
end
if #ended > 0 then redis.call('HDEL', KEYS[2], unpack(ended)) end
return cmsgpack.pack({cursor = page[1], dropped = #ended})
