-- Keep a lease.
-- Writes the lease.
-- KEYS: the lease
-- ARGV: time to live (ms), as in fenced
-- Returns as in fenced, or 'K'.
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 'K'
