-- How many claims of a namespace are held, and how many have run out and wait for the sweep.
-- Reads c{tag}<epoch>.<medium>, two thousand claims of each at most, of so many media as together have
-- no more than that.
-- KEYS: c{tag}<epoch>.<medium> of some media
-- Returns 'K', claims held, claims run out, 1 if all were counted or 0, and of how many of the media,
--         separated by blanks.
local ENOUGH = 2000
local t = redis.call('TIME')
local ms = t[1] * 1000 + math.floor(t[2] / 1000)
local held, dead, whole, media = 0, 0, 1, 0
for _, key in ipairs(KEYS) do
  if held + dead >= ENOUGH then break end
  local cursor, met = '0', 0
  repeat
    local page = redis.call('HSCAN', key, cursor, 'COUNT', 500)
    cursor, met = page[1], met + #page[2] / 2
    for n = 1, #page[2], 2 do
      if page[2][n] ~= '' then
        if (tonumber(string.sub(page[2][n + 1], 9)) or 0) > ms then
          held = held + 1
        else
          dead = dead + 1
        end
      end
    end
  until cursor == '0' or met >= ENOUGH
  if cursor ~= '0' then whole = 0 end
  media = media + 1
end
return string.format('K%d %d %d %d', held, dead, whole, media)
