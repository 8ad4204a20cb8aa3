-- Rewrite a string that is still as it was read.
-- Reads and writes f{tag}.
-- KEYS: f{tag}
-- ARGV: as it was read, '' for none; as it is to be
-- Returns 'K' and 1, or 0 where it is another one by now.
local is = redis.call('GET', KEYS[1]) or ''
if is ~= ARGV[1] then return 'K0' end
redis.call('SET', KEYS[1], ARGV[2])
return 'K1'
