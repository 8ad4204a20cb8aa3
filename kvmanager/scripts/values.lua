-- Some fields of a hash.
-- Reads u{tenant}, o{tag} or x{tag}.
-- KEYS: u{tenant}, o{tag} or x{tag}
-- ARGV: names of fields
-- Returns msgpack, a list: their values, false for one that is not there.
return cmsgpack.pack(redis.call('HMGET', KEYS[1], unpack(ARGV)))
