-- Give a lease up.
-- Writes the lease.
-- KEYS: the lease
-- ARGV: its value
-- Returns 'K'.
redis.call('DEL', KEYS[1])
return 'K'
