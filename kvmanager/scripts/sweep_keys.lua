-- Unlink keys of a family that is void: some of its buckets, or at the end its claims and its counts.
-- Reads and writes n{tag}, p{tag}<epoch>.<medium>.<bucket>, c{tag}<epoch>.<medium>.
-- KEYS: n{tag}, at most 512 keys, as in fenced
-- ARGV: <epoch>.<medium> to forget the counts as well, else '', as in fenced
-- Returns as in fenced, or how many keys there were.
if ARGV[1] ~= '' then redis.call('HDEL', KEYS[1], 'f:' .. ARGV[1], 'k:' .. ARGV[1]) end
return redis.call('UNLINK', unpack(KEYS, 2, #KEYS - 1))
