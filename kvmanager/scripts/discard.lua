-- Forget pages of one medium whose location is still the given one and which nobody owns: none is
-- told, no sequence changes. Their parents' counts stay.
-- Reads and writes n{tag} and p{tag}<epoch>.<medium>.<bucket> of each digest; tells listeners.
-- KEYS: n{tag}
-- ARGV: epoch, tag, medium, digests, a byte for each: length of its location; locations
-- Returns 'K' and how many are gone. 'S<epoch>' and 'L' as in lookup.
local epoch, tag, medium, digests, lengths, locations = unpack(ARGV)
local here = epoch .. '.' .. medium
local head = call('HMGET', KEYS[1], 'epoch', 'f:' .. here, 'events_until')
if head[1] ~= epoch then return head[1] and 'S' .. head[1] or 'L' end
local pages = family(tag, epoch, medium, head[2])
local gone, location_at = {}, 1
for n = 1, #lengths do
  local i, size = n * 16 - 15, byte(lengths, n)
  local location = sub(locations, location_at, location_at + size - 1)
  location_at = location_at + size
  local key, field = place(pages, digests, i)
  local e = pcall('HGET', key, field)
  if type(e) == 'string' and valid(e) and sub(e, 8) == location then
    call('HDEL', key, field)
    gone[#gone + 1] = sub(digests, i, i + 15)
  end
end
if #gone > 0 then
  call('HINCRBY', KEYS[1], 'k:' .. here, -#gone)
  tell(KEYS[1], head[3], 'kind', 'removed', 'medium', medium, 'reported', '1',
    'digests', table.concat(gone))
end
return 'K' .. #gone
