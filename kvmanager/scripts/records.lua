-- What processes last reported of themselves.
-- Reads i{tag}<process> of each.
-- KEYS: i{tag}<process>, at most 256
-- Returns msgpack, a list: for each a record, or false.
return cmsgpack.pack(redis.call('MGET', unpack(KEYS)))
