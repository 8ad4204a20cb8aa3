-- Samples of a tenant at equal distances within a window, each the last one before its moment.
-- Reads h{tenant}<step>.
-- KEYS: h{tenant}<step>
-- ARGV: window (ms), how many moments
-- Returns msgpack, a list of: [ms of Redis TIME, sample], the oldest first.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local window, moments = tonumber(ARGV[1]), tonumber(ARGV[2])
local found, last = {}, nil
for n = 0, moments - 1 do
  local at = string.format('%.0f', math.max(0, now - window + window * n / (moments - 1)))
  local entry = redis.call('XREVRANGE', KEYS[1], at, '-', 'COUNT', 1)[1]
  if not entry and not last then entry = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1] end
  if entry and entry[1] ~= last then
    last = entry[1]
    found[#found + 1] = {tonumber(string.match(last, '^%d+')), entry[2][2]}
  end
end
return cmsgpack.pack(found)
