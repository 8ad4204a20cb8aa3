-- A page was read and is wrong, or is no longer there: forget it, and tell its owner. If its parent
-- is unknown here, a mark stays in its place until the page is published or removed.
-- Reads and writes n{tag} and p{tag}<epoch>.<medium>.<bucket> of the digest and of its parent on
-- each medium; appends to b{tag}<store> (at most 1,024, for an hour); tells listeners.
-- KEYS: n{tag}
-- ARGV: epoch, tag, digest, parent (zeros if unknown), location
-- Returns 'K' and '1' if the entry was there and is gone, else '0'. 'S<epoch>' and 'L' as in lookup.
local epoch, tag, digest, parent, location = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local head = call('HMGET', KEYS[1], 'epoch', 'media', 'events_until')
if head[1] ~= epoch then return head[1] and 'S' .. head[1] or 'L' end
local media = head[2] or ''
local gone = '0'
for m = 1, #media, 8 do
  local medium = sub(media, m, m + 7)
  local here = epoch .. '.' .. medium
  local pages = family(tag, epoch, medium, call('HGET', KEYS[1], 'f:' .. here))
  local key, field = place(pages, digest, 1)
  local e = call('HGET', key, field)
  if valid(e) and sub(e, 8) == location then
    local counted = byte(e, 6) >= COUNTED
    if counted and parent == string.rep('\0', 16) then
      call('HSET', key, field, REPORTED .. location)
    else
      call('HDEL', key, field)
      if counted then
        local parent_key, parent_field = place(pages, parent, 1)
        bump(parent_key, parent_field, -1)
      end
    end
    call('HINCRBY', KEYS[1], 'k:' .. here, -1)
    gone = '1'
    tell(KEYS[1], head[3], 'kind', 'removed', 'medium', medium, 'reported', '1', 'digests', digest)
  end
end
if gone == '1' and #location >= 16 then
  local owner = 'b' .. tag .. sub(location, 1, 16)
  call('RPUSH', owner, digest .. location)
  call('LTRIM', owner, -1024, -1)
  call('PEXPIRE', owner, 3600000)
end
return 'K' .. gone
