-- Where pages are, on media that the caller reaches.
-- Reads n{tag} and p{tag}<epoch>.<medium>.<bucket> of each digest; for a missed one also
-- c{tag}<epoch>.<medium> and the buckets of media that the caller did not name.
-- Writes the stamp of an entry that was found, at most once an interval, and n{tag} hits.
-- KEYS: n{tag}
-- ARGV: epoch, tag, digests, media (8 bytes each, nearest first), '1' to stop at the first miss,
--       touch interval (100 ms)
-- Returns 'K' and for each digest its entry, or a byte: 128 nowhere, 129 being written,
--         130 on another medium. 'S<epoch>': cleared since. 'L': namespace unknown.
local epoch, tag, digests, media = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local wanted = {'epoch', 'media'}
for m = 1, #media, 8 do wanted[#wanted + 1] = 'f:' .. epoch .. '.' .. sub(media, m, m + 7) end
local head = call('HMGET', KEYS[1], unpack(wanted))
if head[1] ~= epoch then return head[1] and 'S' .. head[1] or 'L' end
local prefix_only, interval = ARGV[5] == '1', tonumber(ARGV[6])
local units, ms = now()
local fresh = be32(units)
local families = {}
for n = 1, #wanted - 2 do
  families[n] = family(tag, epoch, sub(media, n * 8 - 7, n * 8), head[n + 2])
end

local function touch(key, field, e, flags)
  if flags % 128 < READ then flags = flags + READ end
  pcall('HSET', key, field, sub(e, 1, 1) .. fresh .. char(flags) .. sub(e, 7))
end

local function why(i)
  local digest = sub(digests, i, i + 15)
  for m = 1, #media, 8 do
    local claim = pcall('HGET', 'c' .. tag .. epoch .. '.' .. sub(media, m, m + 7), digest)
    if type(claim) == 'string' and (tonumber(sub(claim, 9)) or 0) > ms then return '\129' end
  end
  local others = head[2] or ''
  for m = 1, math.min(#others, 64), 8 do
    local id = sub(others, m, m + 7)
    if not string.find(media, id, 1, true) then
      local buckets = call('HGET', KEYS[1], 'f:' .. epoch .. '.' .. id)
      local key, field = place(family(tag, epoch, id, buckets), digest, 1)
      if valid(pcall('HGET', key, field)) then return '\130' end
    end
  end
  return '\128'
end

local out, hits, rows = {'K'}, 0, #families
local n = 1
for i = 1, #digests, 16 do
  local found
  for m = 1, rows do
    local key, field = place(families[m], digests, i)
    local e = pcall('HGET', key, field)
    if valid(e) then
      local a, b, c, d, flags = byte(e, 2, 6)
      local age = (units - (((a * 256 + b) * 256 + c) * 256 + d)) % 4294967296
      if age >= interval or flags % 128 < READ then touch(key, field, e, flags) end
      found = e
      break
    end
  end
  n = n + 1
  out[n] = found or why(i)
  if found then
    hits = hits + 1
  elseif prefix_only then
    break
  end
end
if hits > 0 then pcall('HINCRBY', KEYS[1], 'hits', hits) end
return table.concat(out)
