-- Forget a namespace that holds nothing and that nobody has used for long, in two steps; between them
-- it is taken off the list of all. From the first on, members that come are told to enlist it again,
-- so that one that comes in between stays listed.
-- What was cleared stays cleared: then its epoch is kept, for stores that come back from far away.
-- Reads and writes n{tag}; reads s{tag}; unlinks all else of the namespace.
-- KEYS: n{tag}, s{tag}, other keys of the namespace, as in fenced
-- ARGV: '1' or '2': the step, how long it was not used (ms), as in fenced
-- Returns as in fenced, or 1: done; 0: it is in use, and must be listed.
local names = KEYS[1]
local known = redis.call('HMGET', names, 'media', 'dropping', 'seen', 'cleared', 'forgetting')
local seconds = tonumber(redis.call('TIME')[1])
local used = (known[1] or '') ~= '' or (known[2] or '') ~= '' or redis.call('HLEN', KEYS[2]) > 0
  or seconds - (tonumber(known[3]) or 0) <= tonumber(ARGV[2]) / 1000
if used or (ARGV[1] == '2' and not known[5]) then return 0 end
if ARGV[1] == '1' then
  redis.call('HSET', names, 'forgetting', '1')
  return 1
end
local kept = known[4] and redis.call('HMGET', names, 'fingerprint', 'encoding', 'schema', 'epoch')
redis.call('UNLINK', names, unpack(KEYS, 2, #KEYS - 1))
if kept and kept[1] and kept[4] then
  redis.call('HSET', names, 'fingerprint', kept[1], 'encoding', kept[2], 'schema', kept[3],
    'epoch', kept[4], 'cleared', known[4], 'purged', kept[4])
end
return 1
