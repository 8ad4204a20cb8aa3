-- Included before every script that acts for the holder of a lease. Reads the lease.
-- KEYS: ..., the lease (last)
-- ARGV: ..., the lease's value as the caller was given it (last)
-- Returns 'F' where that lease is not the caller's any more: nothing is done.
if redis.call('GET', KEYS[#KEYS]) ~= ARGV[#ARGV] then return 'F' end
