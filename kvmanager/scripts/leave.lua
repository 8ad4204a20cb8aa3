-- A process takes its leave: its record goes, and listeners are told at once that its store is lost.
-- Reads n{tag}; reads and writes s{tag}; deletes r{tag}<process>; tells listeners.
-- KEYS: n{tag}, s{tag}, r{tag}<process>
-- ARGV: process, its store
-- Returns 'K'.
redis.call('DEL', KEYS[3])
local heard = redis.call('HGET', KEYS[1], 'events_until')
local ok, record = pcall(cmsgpack.unpack, heard and redis.call('HGET', KEYS[2], ARGV[2]) or '')
if ok and type(record) == 'table' and record[1] == ARGV[1] and not record[8] then
  for i, blank in ipairs({'', '', 0}) do record[i + 4] = record[i + 4] or blank end
  record[8] = true -- as sweep_stores has it: told
  redis.call('HSET', KEYS[2], ARGV[2], cmsgpack.pack(record))
  tell(KEYS[1], heard, 'kind', 'lost', 'medium', tostring(record[2]), 'store', ARGV[2],
    'process', ARGV[1], 'why', 'left')
end
return 'K'
