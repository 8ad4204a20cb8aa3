/* The pages of a batch through a ring: plan, copy by way of staging blocks, checksums, records. */
#ifndef HICACHE_RING_BATCH_H
#define HICACHE_RING_BATCH_H

#include "records.h"
#include "ring.h"
#include "transfer.h"

struct ring_batch {
    struct ring *ring;
    struct transfer *t;            /* `max_bytes` and `threads` do not count */
    struct records *records;       /* NULL for a read */
    uint64_t padded_bytes;         /* staged pages are written as that many, if that is more */
    const struct iov_memory *memories; /* pages that lie in one of them whole are not copied */
    size_t memory_count;
    uint64_t device; /* of the mount, as in stx_dev: files of another one fail with -ESTALE */
};

/* Reads the batch, or writes it and its records in the order that WriteBatch in io/engine.py
 * demands. Returns 0, or -1 if there is no memory, in which case nothing was moved. */
int ring_move_pages(struct ring_batch *batch);

#endif
