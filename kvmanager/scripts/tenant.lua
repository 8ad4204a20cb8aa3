-- A tenant's settings.
-- Reads u{tenant}.
-- KEYS: u{tenant}
-- ARGV: names of fields
-- Returns msgpack, a list: their values, false for one that is not set.
return cmsgpack.pack(redis.call('HMGET', KEYS[1], unpack(ARGV)))
