-- Forget pages of one medium whose location is still the given one.
-- Reads and writes n{tag}, q{tag}, p{tag}<epoch>.<medium>.<bucket> of each digest and of its
-- parent, y{tag} where pages are pinned; tells listeners.
-- KEYS: n{tag}, q{tag}
-- ARGV: as in mutation, then digests; parents (16 bytes each, zeros if unknown); a byte for each:
--       length of its location; locations; '' or 4 bytes for each: time since its owner used it
--       (100 ms), then: how long a page is kept for its children's sake (100 ms)
-- Returns as in mutation, results: a byte for each digest: 0 removed or not there, 1 kept because
--         another process used it since or it is pinned, 2 kept because of its children. Nothing is
--         kept where no times are given.
-- A page that a reader reported without knowing its parent is still counted there; its owner, who
-- knows, is told of the report and settles that here.
local digests, parents, lengths, locations, idle = ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10]
local parent_age = tonumber(ARGV[11])
local units, ms = now()
local pins = (tonumber(head[4] or '') or 0) > 0 and 'y' .. tag
local UNKNOWN = string.rep('\0', 16)

local debts = {} -- children gone here, by parent: written once, and not at all if it goes too

local function kept(e, n, digest)
  if idle == '' then return nil end
  local hi, lo = byte(e, 6, 7)
  local age = (units - stamp(e)) % 4294967296
  if hi % 64 * 256 + lo > (debts[digest] or 0) and age < parent_age then return '\2' end
  local a, b, c, d = byte(idle, n * 4 - 3, n * 4)
  if hi % 128 >= READ and age < ((a * 256 + b) * 256 + c) * 256 + d then return '\1' end
  if pins and (tonumber(call('HGET', pins, digest) or '') or 0) * 1000 > ms then return '\1' end
  return nil
end

local function owe(parent)
  if parent ~= UNKNOWN then debts[parent] = (debts[parent] or 0) + 1 end
end

local out, removed, gone = {}, 0, {}
local location_at = 1
for n = 1, #lengths do
  local i, size = n * 16 - 15, byte(lengths, n)
  local location = sub(locations, location_at, location_at + size - 1)
  location_at = location_at + size
  local digest = sub(digests, i, i + 15)
  local key, field = place(pages, digest, 1)
  local e = call('HGET', key, field)
  out[n] = '\0'
  if valid(e) and sub(e, 8) == location then
    local keep = kept(e, n, digest)
    if keep then
      out[n] = keep
    else
      call('HDEL', key, field)
      removed = removed + 1
      if heard then gone[removed] = digest end
      debts[digest] = nil
      if byte(e, 6) >= COUNTED then owe(sub(parents, i, i + 15)) end
    end
  elseif e == REPORTED .. location then
    call('HDEL', key, field)
    owe(sub(parents, i, i + 15))
  end
end
for parent, n in pairs(debts) do
  local key, field = place(pages, parent, 1)
  bump(key, field, -n)
end
if removed > 0 then
  call('HINCRBY', KEYS[1], 'k:' .. here, -removed)
  tell(KEYS[1], heard, 'kind', 'removed', 'medium', medium, 'store', store,
    'digests', table.concat(gone))
end
return answer(table.concat(out))
