-- Included before scripts that end what is left of the absent. Reads n{tag}.
-- KEYS: n{tag}, ...
-- Nobody can be seen by a registry that is away itself: nobody counts as absent until it is back for
-- ten minutes, in which whoever lives comes back.
local seconds = tonumber(redis.call('TIME')[1])
local back = tonumber(redis.call('HGET', KEYS[1], 'back') or nil) or 0
-- seen: seconds of TIME, or what is none
local function absent(seen, limit_ms)
  local limit = limit_ms / 1000
  return seconds - (tonumber(seen or nil) or 0) > limit and seconds - back > math.min(limit, 600)
end
