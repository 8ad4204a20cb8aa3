#include "prefixes.h"

#include <string.h>

static uint64_t prefix_of(const void *digest)
{
    uint64_t prefix;
    memcpy(&prefix, digest, sizeof prefix);
    return prefix ? prefix : 1;
}

void prefixes_expect(struct prefixes set, const void *digest)
{
    __builtin_prefetch(&set.cells[prefix_of(digest) & set.mask]);
}

bool prefixes_have(struct prefixes set, const void *digest)
{
    uint64_t prefix = prefix_of(digest);
    for (uint64_t i = prefix & set.mask; set.cells[i]; i = (i + 1) & set.mask)
        if (set.cells[i] == prefix)
            return true;
    return false;
}

void prefixes_add(struct prefixes set, const void *digest)
{
    uint64_t prefix = prefix_of(digest), i = prefix & set.mask;
    while (set.cells[i])
        i = (i + 1) & set.mask;
    set.cells[i] = prefix;
}

/* What comes behind the cell moves up, unless that would put it before its own place. */
void prefixes_remove(struct prefixes set, const void *digest)
{
    uint64_t prefix = prefix_of(digest), hole = prefix & set.mask;
    while (set.cells[hole] != prefix) {
        if (!set.cells[hole])
            return;
        hole = (hole + 1) & set.mask;
    }
    for (uint64_t i = (hole + 1) & set.mask; set.cells[i]; i = (i + 1) & set.mask) {
        uint64_t home = set.cells[i] & set.mask;
        if (((i - home) & set.mask) >= ((i - hole) & set.mask)) {
            set.cells[hole] = set.cells[i];
            hole = i;
        }
    }
    set.cells[hole] = 0;
}
