-- Raise the epoch of a namespace: every entry and claim of before is void.
-- Reads and writes n{tag}.
-- KEYS: n{tag}
-- Returns 'K' and the new epoch; 'L' if the namespace is unknown.
if redis.call('HEXISTS', KEYS[1], 'fingerprint') == 0 then return 'L' end
return 'K' .. string.format('%.0f', redis.call('HINCRBY', KEYS[1], 'epoch', 1))
