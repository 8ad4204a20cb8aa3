-- What the registry knows of pages on some of the media: everything that says why one is found or
-- missed.
-- Reads n{tag}, y{tag}, p{tag}<epoch>.<medium>.<bucket> of each digest on each of these media, those of
-- the epoch before for a page that is on none; c{tag}<epoch>.<medium> and the newest events of e{tag}.
-- KEYS: n{tag}, e{tag}, y{tag}
-- ARGV: tag, digests, how many media to pass over: a multiple of 256
-- Returns msgpack, a map: epoch, units (100 ms of Redis TIME), ms, rest (there are media behind these),
--         pages: for each digest, as far as a call may take, a map: at (a list of medium and entry; an
--         entry that begins with a zero byte was reported), claims (a list of medium and end, ms),
--         cleared (it was there before the epoch), dropped (it is on a medium that is being forgotten),
--         pinned (until, s), told (what the newest event about it says: id, kind, reported; with the
--         first media only); empty if the namespace is unknown.
local MEDIA, MOST_MEDIA, MOST_PROBES = 256, 1024, 2048
local MOST_EVENTS, EVENTS_A_STEP, READ_BYTES, SEARCH_BYTES = 512, 16, 1048576, 2097152
local tag, digests, passed = ARGV[1], ARGV[2], tonumber(ARGV[3])
local known = call('HMGET', KEYS[1], 'fingerprint', 'epoch', 'media', 'dropping', 'purged')
if not known[1] then return cmsgpack.pack({}) end
local epoch, units, ms = known[2] or '0', now()
local before = string.format('%.0f', (tonumber(epoch) or 0) - 1)
local most = math.min(MOST_MEDIA, passed + MEDIA) * 8

local function ids(listed)
  local found = {}
  for m = passed * 8 + 1, math.min(#listed, most), 8 do found[#found + 1] = sub(listed, m, m + 7) end
  return found
end

local function families(of, media)
  local wanted = {}
  for n, id in ipairs(media) do wanted[n] = 'f:' .. of .. '.' .. id end
  local found = #wanted > 0 and call('HMGET', KEYS[1], unpack(wanted)) or {}
  for n, id in ipairs(media) do found[n] = family(tag, of, id, found[n]) end
  return found
end

local probes = 0
local function anywhere(these, at)
  for n = 1, #these do
    probes = probes + 1
    if valid(pcall('HGET', place(these[n], digests, at))) then return true end
  end
  return false
end

local listed = math.max(#(known[3] or ''), #(known[4] or ''))
local rest = listed > most and most < MOST_MEDIA * 8
local media, dropping = ids(known[3] or ''), ids(known[4] or '')
local here, there = families(epoch, media), families(epoch, dropping)
local old = {}
if (tonumber(known[5] or '') or 0) < (tonumber(epoch) or 0) then old = families(before, media) end

local pages, missed = {}, {}
for i = 1, #digests, 16 do
  if probes >= MOST_PROBES then break end
  local digest, page = sub(digests, i, i + 15), {at = {}, claims = {}}
  local found = false
  probes = probes + #media + 1
  for n, id in ipairs(media) do
    local e = pcall('HGET', place(here[n], digests, i))
    if valid(e) or type(e) == 'string' and sub(e, 1, 1) == REPORTED then
      page.at[#page.at + 1] = {id, e}
      found = found or valid(e)
    end
  end
  if not found then
    probes = probes + #media
    for _, id in ipairs(media) do
      local claim = pcall('HGET', 'c' .. tag .. epoch .. '.' .. id, digest)
      local ends = type(claim) == 'string' and tonumber(sub(claim, 9)) or 0
      if ends > ms then page.claims[#page.claims + 1] = {id, ends} end
    end
    page.dropped = anywhere(there, i)
    page.cleared = anywhere(old, i)
    missed[#missed + 1] = {digest, page}
  end
  local pin = pcall('HGET', KEYS[3], digest)
  page.pinned = type(pin) == 'string' and tonumber(pin) or 0
  pages[#pages + 1] = page
end

local function mentions(joined, digest)
  local at = string.find(joined, digest, 1, true)
  while at and at % 16 ~= 1 do at = string.find(joined, digest, at + 1, true) end
  return at
end

-- Events from the newest on, until enough were read and searched.
local upper, read, met, searched = '+', 0, 0, 0
if #missed == 0 or passed > 0 then met = MOST_EVENTS end
while met < MOST_EVENTS and read < READ_BYTES and searched < SEARCH_BYTES do
  local rows = redis.pcall('XREVRANGE', KEYS[2], upper, '-', 'COUNT', EVENTS_A_STEP)
  for n = 1, #rows do
    local fields = {}
    for k = 1, #rows[n][2], 2 do fields[rows[n][2][k]] = rows[n][2][k + 1] end
    local joined = fields.digests or ''
    read, met = read + #joined, met + 1
    for _, each in ipairs(missed) do
      if not each[2].told then
        searched = searched + #joined
        if mentions(joined, each[1]) then
          each[2].told = {rows[n][1], fields.kind or '', fields.reported or ''}
        end
      end
    end
  end
  if #rows < EVENTS_A_STEP then break end
  upper = '(' .. rows[#rows][1]
end
return cmsgpack.pack({epoch = tonumber(epoch) or 0, units = units, ms = ms, rest = rest, pages = pages})
