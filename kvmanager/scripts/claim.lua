-- The right to write pages on one medium.
-- Reads n{tag} and p{tag}<epoch>.<medium>.<bucket> of each digest.
-- Reads and writes c{tag}<epoch>.<medium>: by digest, token (8 bytes) and expiry (ms of Redis TIME);
-- its field '' is longer than a compact hash allows, so that one HMGET costs the same however
-- many claims there are.
-- KEYS: n{tag}
-- ARGV: epoch, tag, digests, medium, token, time to live (ms)
-- Returns 'K' and a byte for each digest: 0 granted, 1 stored already, 2 being written elsewhere.
--         'S<epoch>' and 'L' as in lookup.
local epoch, tag, digests, medium, token = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local head = call('HMGET', KEYS[1], 'epoch', 'f:' .. epoch .. '.' .. medium)
if head[1] ~= epoch then return head[1] and 'S' .. head[1] or 'L' end
local pages = family(tag, epoch, medium, head[2])
local claims = 'c' .. tag .. epoch .. '.' .. medium
local ttl = tonumber(ARGV[6])
local _, ms = now()

local fields = {''}
for i = 1, #digests, 16 do fields[#fields + 1] = sub(digests, i, i + 15) end
local held = call('HMGET', claims, unpack(fields))
local out, grants = {'K'}, {}
local mine = token .. string.format('%.0f', ms + ttl)
for n = 2, #fields do
  local key, field = place(pages, fields[n], 1)
  local claim = held[n]
  if valid(call('HGET', key, field)) then
    out[n] = '\1'
  elseif claim and sub(claim, 1, 8) ~= token and (tonumber(sub(claim, 9)) or 0) > ms then
    out[n] = '\2'
  else
    out[n] = '\0'
    grants[#grants + 1] = fields[n]
    grants[#grants + 1] = mine
  end
end
if #grants > 0 then
  if not held[1] then
    grants[#grants + 1] = ''
    grants[#grants + 1] = string.rep('.', 65)
  end
  call('HSET', claims, unpack(grants))
  if call('PTTL', claims) < ttl then call('PEXPIRE', claims, ttl) end
end
return table.concat(out)
