-- Add a process's report to the sums of its namespace, and keep its state.
-- Reads n{tag}; writes t{tag}; reads and rewrites i{tag}<process> with its time to live.
-- KEYS: n{tag}, t{tag}, i{tag}<process>
-- ARGV: number of the report, record, time to live (ms), then name and increment of each counter
-- Returns K and 1, or 0 where a report of this number or a later one was applied before. 'L' as in
--         lookup: nothing is done, or sums would stay of what nobody has registered.
if not redis.call('HGET', KEYS[1], 'fingerprint') then return 'L' end
local last = redis.call('GET', KEYS[3])
if last then
  local ok, record = pcall(cmsgpack.unpack, last)
  local number = ok and type(record) == 'table' and tonumber(record.number)
  if number and number >= tonumber(ARGV[1]) then return 'K0' end
end
redis.call('SET', KEYS[3], ARGV[2], 'PX', ARGV[3])
for i = 4, #ARGV, 2 do
  redis.pcall('HINCRBY', KEYS[2], ARGV[i], ARGV[i + 1]) -- a sum that is full stays as it is
end
return 'K1'
