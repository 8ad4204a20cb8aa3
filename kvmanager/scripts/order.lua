-- Order a mode of processes, or withdraw that.
-- Reads and writes o{tag}.
-- KEYS: o{tag}
-- ARGV: mode, or '' to withdraw; a mode that is withdrawn alone, or ''; processes
-- Returns 'K'.
local order = ARGV[1] .. ' ' .. redis.call('TIME')[1]
for n = 3, #ARGV, 500 do
  local some, writes, ended = {unpack(ARGV, n, math.min(n + 499, #ARGV))}, {}, {}
  local given = ARGV[1] == '' and redis.call('HMGET', KEYS[1], unpack(some))
  for k, process in ipairs(some) do
    if not given then
      writes[2 * k - 1], writes[2 * k] = process, order
    elseif given[k] and (ARGV[2] == '' or string.match(given[k], '^[%l_]+') == ARGV[2]) then
      ended[#ended + 1] = process
    end
  end
  if #writes > 0 then redis.call('HSET', KEYS[1], unpack(writes)) end
  if #ended > 0 then redis.call('HDEL', KEYS[1], unpack(ended)) end
end
return 'K'
