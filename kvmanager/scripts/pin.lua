-- Pin pages: their owners keep them until then, or longer where they are pinned for longer.
-- Reads and writes y{tag}; writes pins of n{tag}, by which removals know that there are any.
-- KEYS: y{tag}, n{tag}
-- ARGV: for how long (s), how many there may be, digests
-- Returns how many there are now; -1 where that would be too many: nothing is done.
local until_s = tonumber(redis.call('TIME')[1]) + tonumber(ARGV[1])
local fresh = {}
for n = 3, #ARGV do
  if redis.call('HEXISTS', KEYS[1], ARGV[n]) == 0 then fresh[ARGV[n]] = true end
end
local more = redis.call('HLEN', KEYS[1])
for _ in pairs(fresh) do more = more + 1 end
if more > tonumber(ARGV[2]) then return -1 end
for n = 3, #ARGV do
  local given = tonumber(redis.call('HGET', KEYS[1], ARGV[n]) or '0') or 0
  if given < until_s then
    redis.call('HSET', KEYS[1], ARGV[n], string.format('%.0f', until_s))
  end
end
redis.call('HSET', KEYS[2], 'pins', more)
return more
