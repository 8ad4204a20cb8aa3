-- Included before every script that reads or writes pages. Touches no key by itself.
--
-- An entry is a field of p{tag}<epoch>.<medium>.<bucket>, named by the digest without its first
-- byte, in which the bucket's number ends. Its value: a byte, 64 + bytes of the location (64: format
-- 1); 4 bytes of access stamp (100 ms of Redis TIME, big endian); 2 bytes (128: counted in its
-- parent, 64: looked up since it was published, 14 bits: children stored); the location. Anything
-- else in its place is no entry; a zero byte and a location: reported, but counted in its parent.
local call, pcall = redis.call, redis.pcall
local byte, sub, char, floor = string.byte, string.sub, string.char, math.floor
local COUNTED, READ, REPORTED = 128, 64, '\0'

local function now()
  local t = call('TIME')
  return floor(t[1] * 10 + t[2] / 100000) % 4294967296, t[1] * 1000 + floor(t[2] / 1000)
end

local function be32(n)
  return char(floor(n / 16777216), floor(n / 65536) % 256, floor(n / 256) % 256, n % 256)
end

-- A family: the pages of one medium in one epoch, in so many buckets (linear hashing: buckets are
-- split one by one as pages come, so that each stays a compact hash and is found at once).
-- buckets: n{tag} f:<epoch>.<medium>; never below 256, so that a bucket's number ends in the digest's
-- first byte; 4,096 to begin with, so that the first 65,536 pages split none.
local function family(tag, epoch, medium, buckets)
  local n, low = math.max(256, math.min(tonumber(buckets) or 4096, 4194304)), 256
  while low * 2 <= n do low = low * 2 end
  return {prefix = 'p' .. tag .. epoch .. '.' .. medium .. '.', low = low, split = n - low}
end

local function bucket_key(f, first, n)
  local rest = (n - first) / 256
  return f.prefix .. char(first, rest % 256, (rest - rest % 256) / 256)
end

-- Key and field of the digest that begins at byte i of s.
local function place(f, s, i)
  local a, b, c = byte(s, i, i + 2)
  local hash = a + b * 256 + c % 64 * 65536
  local n = hash % f.low
  if n < f.split then n = hash % (f.low * 2) end
  return bucket_key(f, a, n), sub(s, i + 1, i + 15)
end

local function valid(e)
  return e and #e >= 7 and #e <= 55 and byte(e) == #e + 57
end

local function stamp(e)
  local a, b, c, d = byte(e, 2, 5)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

-- Add n to the children of a page, if it is there.
local function bump(key, field, n)
  local e = call('HGET', key, field)
  if not valid(e) then return false end
  local hi, lo = byte(e, 6, 7)
  local flags = hi - hi % 64
  local children = math.max(0, math.min(16383, (hi - flags) * 256 + lo + n))
  call('HSET', key, field,
    sub(e, 1, 5) .. char(flags + floor(children / 256), children % 256) .. sub(e, 8))
  return true
end
