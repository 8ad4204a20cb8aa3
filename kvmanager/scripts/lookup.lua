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

local out, missed, hits = {'K'}, {}, 0
local n, rows = 1, #families
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
  if found then
    out[n] = found
    hits = hits + 1
  else
    out[n] = '\128'
    missed[#missed + 1] = n
    if prefix_only then break end
  end
end
if hits > 0 then pcall('HINCRBY', KEYS[1], 'hits', hits) end
if #missed == 0 then return table.concat(out) end

-- Why: pages on other media, as long as that is cheap; a claim here says more, so it comes last.
local fields = {}
for k = 1, #missed do fields[k] = sub(digests, missed[k] * 16 - 31, missed[k] * 16 - 16) end
local others, budget = head[2] or '', 256
for m = 1, #others, 8 do
  local id = sub(others, m, m + 7)
  if not string.find(media, id, 1, true) then
    local there = family(tag, epoch, id, call('HGET', KEYS[1], 'f:' .. epoch .. '.' .. id))
    for k = 1, math.min(#fields, budget) do
      local key, field = place(there, fields[k], 1)
      if valid(pcall('HGET', key, field)) then out[missed[k]] = '\130' end
    end
    budget = budget - #fields
  end
end
for m = 1, #media, 8 do
  local claims = pcall('HMGET', 'c' .. tag .. epoch .. '.' .. sub(media, m, m + 7), unpack(fields))
  for k = 1, #claims do
    local expiry = claims[k] and tonumber(sub(claims[k], 9))
    if expiry and expiry > ms then out[missed[k]] = '\129' end
  end
end
return table.concat(out)
