/* A hash set of the first eight bytes of digests, in memory that Python owns.
 *
 * Open addressing, linear probing, one 64-bit cell a digest, 0 for an empty one; a power of two of
 * cells, never full. It tells for many digests at once whether they are held, with one cache miss
 * each, all under way together. Two digests with one prefix are two cells.
 */
#ifndef HICACHE_PREFIXES_H
#define HICACHE_PREFIXES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct prefixes {
    uint64_t *cells;
    uint64_t mask; /* cells - 1 */
};

void prefixes_add(struct prefixes set, const void *digest);
void prefixes_remove(struct prefixes set, const void *digest);
void prefixes_expect(struct prefixes set, const void *digest); /* a look at it will follow */
bool prefixes_have(struct prefixes set, const void *digest);

#endif
