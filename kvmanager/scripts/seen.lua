-- Where pages are on one medium, without counting or touching them.
-- Reads n{tag} and p{tag}<epoch>.<medium>.<bucket> of each digest.
-- KEYS: n{tag}
-- ARGV: epoch, tag, medium, digests
-- Returns 'K' and for each digest a byte, the length of its location (0: nowhere), and the location.
--         'S<epoch>' and 'L' as in lookup.
local epoch, tag, medium, digests = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local head = call('HMGET', KEYS[1], 'epoch', 'f:' .. epoch .. '.' .. medium)
if head[1] ~= epoch then return head[1] and 'S' .. head[1] or 'L' end
local pages = family(tag, epoch, medium, head[2])
local out = {'K'}
for i = 1, #digests, 16 do
  local key, field = place(pages, digests, i)
  local e = pcall('HGET', key, field)
  out[#out + 1] = type(e) == 'string' and valid(e) and char(#e - 7) .. sub(e, 8) or '\0'
end
return table.concat(out)
