-- Forget a namespace that holds nothing and that nobody has used for long; or, where it is to be taken
-- off the list of all, say whether somebody has come back since.
-- What was cleared stays cleared: then its epoch is kept, for stores that come back from far away.
-- Reads and writes n{tag}; reads s{tag}; unlinks all else of the namespace.
-- KEYS: n{tag}, s{tag}, other keys of the namespace, as in fenced
-- ARGV: how long it was not used (ms), as in fenced
-- Returns as in fenced, or 1: nothing is left; 0: it is in use, and must be listed.
local names = KEYS[1]
local known = redis.call('HMGET', names, 'media', 'dropping', 'seen', 'cleared')
local used = (known[1] or '') ~= '' or (known[2] or '') ~= '' or redis.call('HLEN', KEYS[2]) > 0
if used or known[3] and not absent(known[3], ARGV[1]) then return 0 end
local kept = known[4] and redis.call('HMGET', names, 'fingerprint', 'encoding', 'schema', 'epoch')
redis.call('UNLINK', names, unpack(KEYS, 2, #KEYS - 1))
if kept and kept[1] and kept[4] then
  redis.call('HSET', names, 'fingerprint', kept[1], 'encoding', kept[2], 'schema', kept[3],
    'epoch', kept[4], 'cleared', known[4], 'purged', kept[4])
end
return 1
