-- Make written pages known on one medium, and give up their claims.
-- Reads and writes n{tag}, q{tag}, p{tag}<epoch>.<medium>.<bucket> of each digest and of its parent
-- and of buckets that are split, c{tag}<epoch>.<medium>; tells listeners.
-- KEYS: n{tag}, q{tag}
-- ARGV: as in mutation, then digests; a byte for each: 0 parent unknown or none, 1 parent is the
--       digest before it, 2 parent is the next of the parents; parents; a byte for each: length of
--       its location; locations; '1' if there are claims to give up
-- Returns as in mutation, results: a byte for each digest: 0 published, 1 another store was first.
local digests, links, parents, lengths, locations = ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10]
local LOAD, MAX_BUCKETS = 16, 4194304
local fresh = be32((now()))
local key, field, link, parent_key, parent_field
local before_key, before_field, before_new -- the digest before; new: its count expects this one

local function adopt()
  if link == 2 then
    bump(parent_key, parent_field, 1)
  elseif not before_new then
    bump(before_key, before_field, 1)
  end
end

-- Another entry is there already: the store's own gives way, another store's stays.
local function meet(e, location, has_parent)
  local hi = byte(e, 6)
  local flags = hi
  if has_parent and hi < COUNTED then
    flags = hi + COUNTED
    adopt()
  end
  local old = sub(e, 8)
  local kept = sub(old, 1, 16) == store and location or old
  if flags ~= hi or kept ~= old then
    call('HSET', key, field,
      char(64 + #kept) .. sub(e, 2, 5) .. char(flags) .. sub(e, 7, 7) .. kept)
  end
  return kept == location and '\0' or '\1'
end

-- Split bucket n - low into itself and bucket n.
local function split(n)
  local low = pages.low
  if n == low * 2 then low = n end
  local first = n % 256
  local from, into = bucket_key(pages, first, n - low), bucket_key(pages, first, n)
  local cursor, moved, fields = '0', {}, {}
  repeat
    local part = call('HSCAN', from, cursor, 'COUNT', 512)
    cursor = part[1]
    for i = 1, #part[2], 2 do
      local b, c = byte(part[2][i], 1, 2)
      if (first + b * 256 + c % 64 * 65536) % (low * 2) == n then
        moved[#moved + 1], moved[#moved + 2] = part[2][i], part[2][i + 1]
        fields[#fields + 1] = part[2][i]
      end
    end
  until cursor == '0'
  if #fields > 0 then
    call('HSET', into, unpack(moved))
    call('HDEL', from, unpack(fields))
  end
  pages.low, pages.split = low, n + 1 - low
end

local out, inserted, added = {}, 0, {}
local location_at, parent_at = 1, 1
for n = 1, #lengths do
  local size = byte(lengths, n)
  local location = sub(locations, location_at, location_at + size - 1)
  location_at = location_at + size
  key, field = place(pages, digests, n * 16 - 15)
  link = byte(links, n)
  local has_parent = link == 1
  if link == 2 then
    parent_key, parent_field = place(pages, parents, parent_at)
    parent_at = parent_at + 16
    has_parent = valid(call('HGET', parent_key, parent_field))
  end
  local entry = char(64 + size) .. fresh
    .. char(has_parent and COUNTED or 0, byte(links, n + 1) == 1 and 1 or 0) .. location
  out[n] = '\0'
  local new, counted = call('HSETNX', key, field, entry) == 1, false
  if not new then
    local e = call('HGET', key, field)
    if valid(e) then
      out[n] = meet(e, location, has_parent)
    else
      counted = e and byte(e) == 0
      if counted then entry = sub(entry, 1, 5) .. char(COUNTED) .. sub(entry, 7) end
      call('HSET', key, field, entry)
      new = true
    end
  end
  if new then
    inserted = inserted + 1
    if heard then added[inserted] = sub(digests, n * 16 - 15, n * 16) end
    if has_parent and not counted then adopt() end
  end
  before_key, before_field, before_new = key, field, new
end
if ARGV[11] == '1' then
  local fields = {}
  for i = 1, #digests, 16 do fields[#fields + 1] = sub(digests, i, i + 15) end
  call('HDEL', 'c' .. tag .. epoch .. '.' .. medium, unpack(fields))
end
if inserted > 0 then
  local stored = call('HINCRBY', KEYS[1], 'k:' .. here, inserted)
  local buckets = pages.low + pages.split
  local most = math.min(buckets + 128, MAX_BUCKETS, math.ceil(stored / LOAD))
  if most > buckets then
    for n = buckets, most - 1 do split(n) end
    call('HSET', KEYS[1], 'f:' .. here, most)
  end
  tell(KEYS[1], heard, 'kind', 'added', 'medium', medium, 'store', store,
    'digests', table.concat(added))
end
return answer(table.concat(out))
