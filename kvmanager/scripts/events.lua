-- Listen: what was told after a listener's last event. All that happens from now on is told, for the
-- length of a lease, which every call renews.
-- Reads n{tag} and writes its events_until; reads e{tag}, renews its time to live, and begins it anew
-- where something was not told: an event of before is not in it then.
-- KEYS: n{tag}, e{tag}
-- ARGV: id of the last event heard ('': none, only later ones are wanted), most events, lease (s)
-- Returns msgpack, a map: epoch, last (id of the newest event), lost (that event is not there: some
--         after it may be missing), events: a list of id and list of field, value, ...; more; empty if
--         the namespace is unknown.
local names, stream = KEYS[1], KEYS[2]
local after, most, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local ENOUGH_BYTES = 262144

local known = redis.call('HMGET', names, 'fingerprint', 'epoch', 'events_until')
if not known[1] then return cmsgpack.pack({}) end
local seconds = tonumber(redis.call('TIME')[1])
local ends = tonumber(known[3] or '') or 0
if not known[3] or redis.call('XLEN', stream) == 0 then
  redis.call('DEL', stream)
  redis.call('XADD', stream, '*', 'kind', 'begin')
  ends = 0
end
if ends - seconds < lease / 2 or ends - seconds > 2 * lease then
  redis.call('HSET', names, 'events_until', string.format('%.0f', seconds + lease))
  redis.call('PEXPIRE', stream, 2000 * lease)
end

local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1][1]
local answer = {epoch = tonumber(known[2]) or 0, last = last, lost = false, more = false, events = {}}
if after == '' or after == last then return cmsgpack.pack(answer) end
local rows = redis.pcall('XRANGE', stream, after, '+', 'COUNT', most + 1)
if rows.err or not rows[1] or rows[1][1] ~= after then
  answer.lost = true
  return cmsgpack.pack(answer)
end
local bytes = 0
for n = 2, #rows do
  if bytes > ENOUGH_BYTES then break end
  answer.events[n - 1] = rows[n]
  for _, part in ipairs(rows[n][2]) do bytes = bytes + #part end
end
answer.more = #answer.events == 0 or answer.events[#answer.events][1] ~= last
return cmsgpack.pack(answer)
