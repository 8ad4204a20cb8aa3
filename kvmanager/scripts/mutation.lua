-- Included before publish and remove, after telling: the store's mutation sequence.
-- Reads n{tag} and writes its k:<epoch>.<medium>, the number of pages; reads and writes q{tag}, field:
-- the store's uuid.
--
-- KEYS: n{tag}, q{tag}
-- ARGV: epoch, tag, medium, store, sequence of this mutation, ...
-- Returns 'K' where the registry had everything before this mutation; 'G' and the last sequence it
-- has (16 digits, -1: none) where it had not: the mutation is carried out and the sequence stays;
-- 'A' and the last sequence where it has this one already: nothing is done.
-- 'S<epoch>' and 'L' as in lookup, 'L' also where the medium is not listed (any more): nothing is done.
local epoch, tag, medium, store = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local sequence = tonumber(ARGV[5])
local here = epoch .. '.' .. medium
local head = call('HMGET', KEYS[1], 'epoch', 'f:' .. here, 'events_until', 'pins', 'm:' .. medium)
if head[1] ~= epoch then return head[1] and 'S' .. head[1] or 'L' end
if not head[5] then return 'L' end
local last = tonumber(call('HGET', KEYS[2], store) or '-1') or -1
if last >= sequence then return 'A' .. string.format('%016.0f', last) end
local pages, heard = family(tag, epoch, medium, head[2]), head[3]

local function answer(results)
  if last < sequence - 1 then return 'G' .. string.format('%016.0f', last) .. results end
  call('HSET', KEYS[2], store, ARGV[5])
  return 'K' .. results
end
