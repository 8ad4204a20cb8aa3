-- Take a task, or keep one that was taken.
-- Reads and writes the lease: 16 bytes of its holder, ':', its fence; and the last fence given out,
-- which rises with every new holder.
-- KEYS: w{tag}, l{tag}<task> or l{tenant}<task>; l{tag} or l{tenant}
-- ARGV: holder (16 bytes), time to live (ms)
-- Returns the lease's value where the holder has it now, '' where another one has.
local held = redis.call('GET', KEYS[1])
if held then
  if string.sub(held, 1, 17) ~= ARGV[1] .. ':' then return '' end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return held
end
local mark = ARGV[1] .. ':' .. string.format('%.0f', redis.call('INCR', KEYS[2]))
redis.call('SET', KEYS[1], mark, 'PX', ARGV[2])
return mark
