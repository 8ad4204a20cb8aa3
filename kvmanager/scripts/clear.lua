-- Raise the epoch of a namespace: every entry and claim of before is void, and every store whose
-- recorded epoch is older is told to drop its pages.
-- Reads and writes n{tag}; tells listeners.
-- KEYS: n{tag}
-- Returns 'K' and the new epoch; 'L' if the namespace is unknown.
local known = redis.call('HMGET', KEYS[1], 'fingerprint', 'events_until')
if not known[1] then return 'L' end
local epoch = string.format('%.0f', redis.call('HINCRBY', KEYS[1], 'epoch', 1))
redis.call('HSET', KEYS[1], 'cleared', epoch)
tell(KEYS[1], known[2], 'kind', 'cleared', 'epoch', epoch)
return 'K' .. epoch
