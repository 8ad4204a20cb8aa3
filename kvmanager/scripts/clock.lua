-- What time it is here.
-- KEYS: none
-- Returns 'K' and ms of Redis TIME.
local time = redis.call('TIME')
return string.format('K%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
