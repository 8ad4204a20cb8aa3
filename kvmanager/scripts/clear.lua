-- Raise the epoch of a namespace: every entry and claim of before is void, and every store whose
-- recorded epoch is older is told to drop its pages.
-- Reads and writes n{tag}.
-- KEYS: n{tag}
-- Returns 'K' and the new epoch; 'L' if the namespace is unknown.
if redis.call('HEXISTS', KEYS[1], 'fingerprint') == 0 then return 'L' end
local epoch = string.format('%.0f', redis.call('HINCRBY', KEYS[1], 'epoch', 1))
redis.call('HSET', KEYS[1], 'cleared', epoch)
return 'K' .. epoch
