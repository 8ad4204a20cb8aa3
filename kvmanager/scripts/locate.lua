-- How long a prefix of the pages is there, for each of several groups of media: a page is there if it
-- is on any medium of the group. A page is hardly ever kept longer than the pages before it, so every
-- eighth of the pages is tried until one is missing, and the rest is bisected. The first page and the
-- last one of what is answered are there, and the page after it is not; a hole of less than an eighth
-- of all pages can be overlooked.
-- Reads n{tag} and p{tag}<epoch>.<medium>.<bucket> of some digests; writes nothing.
-- KEYS: n{tag}
-- ARGV: epoch, tag, digests, media (8 bytes each), groups: a byte, how many media, then as many bytes,
--       which of the media from 0
-- Returns 'K' and for each group 2 bytes, big endian. 'S<epoch>' and 'L' as in lookup.
local epoch, tag, digests, media, groups = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local wanted = {'epoch'}
for m = 1, #media, 8 do wanted[#wanted + 1] = 'f:' .. epoch .. '.' .. sub(media, m, m + 7) end
local head = call('HMGET', KEYS[1], unpack(wanted))
if head[1] ~= epoch then return head[1] and 'S' .. head[1] or 'L' end
local count = #digests / 16
local stride = math.ceil(count / 8)
local families, seen = {}, {}
for m = 1, #wanted - 1 do
  families[m] = family(tag, epoch, sub(media, m * 8 - 7, m * 8), head[m + 1])
  seen[m] = {}
end

local function on(m, page)
  local known = seen[m][page]
  if known == nil then
    local key, field = place(families[m], digests, page * 16 - 15)
    known = valid(pcall('HGET', key, field))
    seen[m][page] = known
  end
  return known
end

local at, size -- of the group
local function there(page)
  for g = at + 1, at + size do
    if on(byte(groups, g) + 1, page) then return true end
  end
  return false
end

local function prefix()
  if count == 0 or not there(1) then return 0 end
  local low, high = 1, count + 1
  while low + stride < high do
    if not there(low + stride) then
      high = low + stride
    else
      low = low + stride
    end
  end
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    if there(middle) then low = middle else high = middle end
  end
  return low
end

local out = {'K'}
at = 1
while at <= #groups do
  size = byte(groups, at)
  local pages = prefix()
  out[#out + 1] = char(floor(pages / 256), pages % 256)
  at = at + size + 1
end
return table.concat(out)
