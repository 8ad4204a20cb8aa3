-- Some members of a set.
-- Reads g or a.
-- KEYS: g or a
-- ARGV: cursor, about how many
-- Returns msgpack, a list: cursor ('0': done), members.
return cmsgpack.pack(redis.call('SSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2]))
