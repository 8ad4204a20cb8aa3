-- Keep what is known of the sums of a tenant's namespaces.
-- Writes v{tenant}, which ends by itself when nothing is kept any more.
-- KEYS: v{tenant}, as in fenced
-- ARGV: time to live (s), then name and sums of each, '' for none, as in fenced
-- Returns as in fenced, or 1.
for n = 2, #ARGV - 1, 2 do
  if ARGV[n + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[n])
  else
    redis.call('HSET', KEYS[1], ARGV[n], ARGV[n + 1])
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
