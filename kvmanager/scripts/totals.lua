-- The sums of all reports of a namespace; as many as the vocabulary has names.
-- Reads t{tag}.
-- KEYS: t{tag}
-- Returns msgpack, a list: name, sum, name, sum, ...
return cmsgpack.pack(redis.call('HGETALL', KEYS[1]))
