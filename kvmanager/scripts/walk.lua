-- What lies in some buckets of one medium, in order. Entries only move to buckets of higher numbers
-- (a split), so that a walk from the first bucket to the last that there is when it comes there
-- misses none; it may meet one twice.
-- Reads n{tag} and p{tag}<epoch>.<medium>.<bucket> of so many buckets.
-- KEYS: n{tag}
-- ARGV: epoch, tag, medium, first bucket, how many, cursor within the first ('0': from its start)
-- Returns 'K' and msgpack, a map: buckets (how many there are), next (the bucket to go on from, and
--         cursor within it), found: for each bucket that holds something its number and either a
--         list of field, value, ... (each cut after 64 bytes) or false where the key is no hash.
--         'S<epoch>' and 'L' as in lookup.
local LARGE, ENOUGH, LONGEST = 512, 2048, 64
local epoch, tag, medium = ARGV[1], ARGV[2], ARGV[3]
local head = call('HMGET', KEYS[1], 'epoch', 'f:' .. epoch .. '.' .. medium)
if head[1] ~= epoch then return head[1] and 'S' .. head[1] or 'L' end
local pages = family(tag, epoch, medium, head[2])
local buckets = pages.low + pages.split
local n, last, cursor = tonumber(ARGV[4]), math.min(ARGV[4] + ARGV[5], buckets), ARGV[6]
local found, met = {}, 0

local function cut(parts)
  for i = 1, #parts do
    if #parts[i] > LONGEST then parts[i] = sub(parts[i], 1, LONGEST) end
  end
  return parts
end

while n < last and met < ENOUGH do
  local key = bucket_key(pages, n % 256, n)
  local size = pcall('HLEN', key)
  if type(size) ~= 'number' then
    found[#found + 1] = {n, false}
    cursor = '0'
  elseif size > LARGE then
    local part = call('HSCAN', key, cursor, 'COUNT', LARGE)
    cursor = part[1]
    found[#found + 1] = {n, cut(part[2])}
    met = met + LARGE
  elseif size > 0 then
    found[#found + 1] = {n, cut(call('HGETALL', key))}
    met = met + size
    cursor = '0'
  else
    cursor = '0'
  end
  if cursor == '0' then n = n + 1 end
end
return 'K' .. cmsgpack.pack({buckets = buckets, next = n, cursor = cursor, found = found})
