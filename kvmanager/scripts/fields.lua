-- Set some fields of a hash that is there, and delete others.
-- Reads and writes n{tag} or u{tenant}.
-- KEYS: n{tag} or u{tenant}
-- ARGV: a field without which nothing is done, or ''; then fields and their values, '' to delete one
-- Returns 1 if it was done, else 0.
if ARGV[1] ~= '' and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
for n = 2, #ARGV, 2 do
  if ARGV[n + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[n])
  else
    redis.call('HSET', KEYS[1], ARGV[n], ARGV[n + 1])
  end
end
return 1
