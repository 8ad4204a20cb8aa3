/* What lies side by side in a file: pages, or records, that one call can move. */
#ifndef HICACHE_PLAN_H
#define HICACHE_PLAN_H

#include <stddef.h>
#include <stdint.h>

/* Where a page, or a record, lies in a file. */
struct place {
    int fd;
    int64_t offset;
    uint64_t bytes;
    size_t index; /* in the batch */
};

/* Neighbours in one file, moved by one vectored call where the limits allow. */
struct run {
    const struct place *places;
    size_t count;
    size_t first_index; /* the lowest in the batch */
};

/* By file, offset and index. */
void sort_places(struct place *places, size_t count);

/* How many of the sorted places lie back to back from the first on, in at most `max_bytes` unless
 * it is one. */
size_t neighbours(const struct place *places, size_t count, uint64_t max_bytes);

/* Sorts the places and cuts them into runs, of which there is room for `count`; returns how many.
 * The runs are in the order of the batch, so that a deadline cuts off its end. */
size_t plan_runs(struct place *places, size_t count, uint64_t max_bytes, struct run *runs);

#endif
