-- Take out of a bucket what is no entry, or is none that is looked for there.
-- Reads n{tag}; reads and writes p{tag}<epoch>.<medium>.<bucket>.
-- KEYS: n{tag}
-- ARGV: epoch, tag, medium, bucket, cursor
-- Returns 'K', how many are gone and the cursor ('0': done), a blank between. 'S<epoch>' and 'L' as in
--         lookup.
local epoch, tag, medium = ARGV[1], ARGV[2], ARGV[3]
local head = call('HMGET', KEYS[1], 'epoch', 'f:' .. epoch .. '.' .. medium)
if head[1] ~= epoch then return head[1] and 'S' .. head[1] or 'L' end
local pages = family(tag, epoch, medium, head[2])
local bucket = tonumber(ARGV[4])
local first = char(bucket % 256)
local key = bucket_key(pages, bucket % 256, bucket)
local kind = call('TYPE', key).ok
if kind == 'none' then return 'K0 0' end
if kind ~= 'hash' then return 'K' .. call('UNLINK', key) .. ' 0' end
local page = call('HSCAN', key, ARGV[5], 'COUNT', 512)
local foreign = {}
for n = 1, #page[2], 2 do
  local field, e = page[2][n], page[2][n + 1]
  local known = #field == 15 and place(pages, first .. field, 1) == key
    and (valid(e) and #e > 7 or byte(e) == 0 and #e > 1 and #e <= 55)
  if not known then foreign[#foreign + 1] = field end
end
if #foreign > 0 then call('HDEL', key, unpack(foreign)) end
return 'K' .. #foreign .. ' ' .. page[1]
