-- Included before every script that changes something which listeners hear of.
-- The stream keeps some 16,384 events, fewer where they are large: about 16 MiB.
-- Reads events_until of n{tag}; appends to e{tag} while that is in the future. Where it is past, or the
-- stream takes nothing, deletes it: whoever listens next begins anew, since something was not told.

-- names: n{tag}; heard: its events_until, false if nobody listens; then fields and values.
local function tell(names, heard, ...)
  if not heard then return end
  if (tonumber(heard) or 0) > tonumber(redis.call('TIME')[1]) then
    local stream, bytes = 'e' .. string.sub(names, 2), 0
    for _, part in ipairs({...}) do bytes = bytes + #tostring(part) end
    local most = math.floor(math.min(16384, 16777216 / bytes))
    if type(redis.pcall('XADD', stream, 'MAXLEN', '~', most, '*', ...)) == 'string' then return end
  end
  redis.call('HDEL', names, 'events_until')
end
