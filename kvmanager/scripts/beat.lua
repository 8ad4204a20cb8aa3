-- Register a process and its store, or say that they are still there; the same in both cases.
-- Reads and writes n{tag}, q{tag}, s{tag}; rewrites r{tag}<process> with its time to live; takes
-- b{tag}<store>; reads the orders in o{tag} and x{tag}, and dates the first; tells listeners of a
-- store that is new or was told as lost.
-- KEYS: n{tag}, q{tag}, s{tag}, r{tag}<process>, b{tag}<store>, o{tag}, x{tag}
-- ARGV: fingerprint, encoding of the namespace, schema, epoch that the store obeyed (-1: it cannot
--       tell), medium (8), medium record, store, process, process record, time to live (ms), '' or
--       the sequence to begin anew from, pages found since the last beat without a script
-- Returns msgpack, a map: epoch, sequence (-1: none), clear (the store's pages are from before a
--         clear that this registry knows of), returned (the process record had lived on), bad, mode,
--         limit_bytes and ttl_ms (as far as ordered), now (100 ms of Redis TIME); or only refused:
--         why; or only busy: why, try again.
-- A visitor, whose store is '', is registered as a process only.
-- A store of unknown epoch keeps its pages, and so does every store where a member brings the epoch
-- back to a registry that had lost it: only clear.lua sets `cleared`.
local names, sequences, stores, alive, bad = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local fingerprint, encoding, schema, obeyed = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local medium, store, process = ARGV[5], ARGV[7], ARGV[8]

local known = redis.call('HMGET', names,
  'fingerprint', 'encoding', 'schema', 'epoch', 'media', 'dropping', 'mode', 'cleared',
  'tenant_mode', 'ttl_ms', 'tenant_ttl_ms', 'm:' .. medium, 'events_until', 'older')
if known[1] and (known[1] ~= fingerprint or known[2] ~= encoding) then
  return cmsgpack.pack({refused = 'another namespace has this tag'})
end
local time = redis.call('TIME')
local newest = known[3] and (tonumber(known[3]) or -9) or schema
if math.abs(newest - schema) > 1 then
  return cmsgpack.pack({refused = 'schema ' .. known[3] .. ' is kept there, not ' .. ARGV[3]
    .. ': upgrade by one version at a time'})
end
if schema > newest and (tonumber(known[14]) or 0) > tonumber(time[1]) then
  return cmsgpack.pack({refused = 'members of schema ' .. newest - 1 .. ' are there, which '
    .. ARGV[3] .. ' does not understand: upgrade them first'})
end

if known[6] and listed(known[6], medium) then
  return cmsgpack.pack({busy = 'what is left of this medium is being swept'})
end

local epoch = tonumber(known[4]) or 0
if obeyed > epoch then epoch = obeyed end
if not known[3] or schema > newest then redis.call('HSET', names, 'schema', ARGV[3]) end
if known[3] and schema ~= newest then -- the older of the two is there for a beat's time
  local ends = math.ceil(time[1] + ARGV[10] / 1000)
  redis.call('HSET', names, 'older', math.max(ends, tonumber(known[14]) or 0))
end
if not known[1] or tonumber(known[4]) ~= epoch then
  redis.call('HSET', names, 'fingerprint', fingerprint, 'encoding', encoding,
    'epoch', string.format('%.0f', epoch))
  tell(names, known[13], 'kind', 'cleared', 'epoch', string.format('%.0f', epoch))
end
local seconds = time[1]
redis.call('HSET', names, 'seen', seconds)
local returned = redis.call('EXISTS', alive) == 1
local stored, sequence, limit = epoch, ARGV[11], nil
if store ~= '' then
  local media = known[5] or ''
  if not listed(media, medium) then redis.call('HSET', names, 'media', media .. medium) end
  if not known[12] then redis.call('HSET', names, 'm:' .. medium, ARGV[6]) end
  redis.call('HSET', names, 'b:' .. medium, seconds)

  local ok, fields = pcall(cmsgpack.unpack, redis.call('HGET', stores, store) or '')
  local there = ok and type(fields) == 'table'
  local recorded = there and tonumber(fields[3]) or -1
  stored = math.max(recorded, obeyed)
  if stored < 0 then stored = epoch end
  local said, about = pcall(cmsgpack.unpack, ARGV[9])
  local host, server, rank = '', '', 0
  if said and type(about) == 'table' then host, server, rank = about[1], about[2], about[3] end
  redis.call('HSET', stores, store,
    cmsgpack.pack({process, medium, stored, seconds, host, server, rank}))
  if not returned or not there or fields[8] then
    local _, place = pcall(cmsgpack.unpack, ARGV[6])
    tell(names, known[13], 'kind', 'joined', 'medium', medium, 'uuid', place[1], 'store', store,
      'process', process, 'host', host, 'server', server, 'rank', rank)
  end
  limit = redis.call('HGET', KEYS[7], store)
  if sequence ~= '' then redis.call('HSET', sequences, store, sequence) end
  sequence = redis.call('HGET', sequences, store)
end

if tonumber(ARGV[12]) > 0 then redis.call('HINCRBY', names, 'hits', ARGV[12]) end
local own = redis.call('HGET', KEYS[6], process)
local mode, given = string.match(own or '', '^([%l_]+) (%d+)$')
if mode and seconds - given > 60 then -- it stays as long as the process does
  redis.call('HSET', KEYS[6], process, mode .. ' ' .. seconds)
end
redis.call('SET', alive, ARGV[9], 'PX', ARGV[10])
local reports = redis.call('LRANGE', bad, 0, -1)
if #reports > 0 then redis.call('DEL', bad) end
return cmsgpack.pack({
  epoch = epoch,
  sequence = tonumber(sequence or '-1') or -1,
  clear = stored < (tonumber(known[8]) or 0),
  returned = returned,
  bad = reports,
  mode = own and string.match(own, '^[%l_]+') or known[7] or known[9] or nil,
  limit_bytes = tonumber(limit or nil),
  ttl_ms = tonumber(known[10] or known[11] or nil),
  now = math.floor(time[1] * 10 + time[2] / 100000),
})
