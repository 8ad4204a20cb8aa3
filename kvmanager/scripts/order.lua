-- Order a mode of processes, or withdraw that.
-- Reads and writes o{tag}.
-- KEYS: o{tag}
-- ARGV: mode, or '' to withdraw; a mode that is withdrawn alone, or ''; processes
-- Returns 'K'.
local seconds = redis.call('TIME')[1]
for n = 3, #ARGV do
  if ARGV[1] ~= '' then
    redis.call('HSET', KEYS[1], ARGV[n], ARGV[1] .. ' ' .. seconds)
  else
    local given = redis.call('HGET', KEYS[1], ARGV[n])
    if given and (ARGV[2] == '' or string.match(given, '^[%l_]+') == ARGV[2]) then
      redis.call('HDEL', KEYS[1], ARGV[n])
    end
  end
end
return 'K'
