-- How many claims of a namespace are held, and how many have run out and wait for the sweep.
-- Reads c{tag}<epoch>.<medium>, two thousand claims of each at most.
-- KEYS: c{tag}<epoch>.<medium> of each medium
-- Returns 'K', claims held, claims run out, and 1 if all were counted or 0, separated by blanks.
local t = redis.call('TIME')
local ms = t[1] * 1000 + math.floor(t[2] / 1000)
local held, dead, whole = 0, 0, 1
for _, key in ipairs(KEYS) do
  local cursor, steps = '0', 0
  repeat
    local page = redis.call('HSCAN', key, cursor, 'COUNT', 500)
    cursor, steps = page[1], steps + 1
    for n = 1, #page[2], 2 do
      if page[2][n] ~= '' then
        if (tonumber(string.sub(page[2][n + 1], 9)) or 0) > ms then
          held = held + 1
        else
          dead = dead + 1
        end
      end
    end
  until cursor == '0' or steps == 4
  if cursor ~= '0' then whole = 0 end
end
return string.format('K%d %d %d', held, dead, whole)
