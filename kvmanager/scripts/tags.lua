-- Some of the tags of all namespaces.
-- Reads g.
-- KEYS: g
-- ARGV: cursor, about how many
-- Returns msgpack, a list: cursor ('0': done), tags.
return cmsgpack.pack(redis.call('SSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2]))
