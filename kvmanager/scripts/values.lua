-- Some fields of a hash.
-- Reads u{tenant} or o{tag}.
-- KEYS: u{tenant} or o{tag}
-- ARGV: names of fields
-- Returns msgpack, a list: their values, false for one that is not there.
return cmsgpack.pack(redis.call('HMGET', KEYS[1], unpack(ARGV)))
