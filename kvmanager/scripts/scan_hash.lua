-- Some fields of a hash.
-- Reads v{tenant}.
-- KEYS: v{tenant}
-- ARGV: cursor, about how many
-- Returns msgpack, a list: cursor ('0': done), a list: field, value, field, value, ...
return cmsgpack.pack(redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2]))
