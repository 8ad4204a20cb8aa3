-- Included before scripts that look for a medium among others. Touches no key.
-- ids: 8 bytes each; whether id is one of them.
local function listed(ids, id)
  local at = string.find(ids, id, 1, true)
  while at and at % 8 ~= 1 do at = string.find(ids, id, at + 1, true) end
  return at ~= nil
end
