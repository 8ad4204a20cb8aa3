/* Moving the pages of a batch between memory and files. Nothing here knows Python. */
#ifndef HICACHE_TRANSFER_H
#define HICACHE_TRANSFER_H

#include "plan.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct transfer {
    size_t count, pieces;
    const int32_t *fds;
    const int64_t *offsets;
    const struct iovec *iov; /* `pieces` to a page */
    const uint8_t *digests;
    int64_t deadline_ns; /* CLOCK_MONOTONIC */
    size_t max_bytes;    /* of one call */
    unsigned threads;
    bool writing;
    bool only_cached; /* read what the page cache holds, never wait for the medium */

    int64_t *results;    /* bytes moved or -errno; a page that enters below 0 is left out */
    uint64_t *checksums;

    struct run *runs;
    size_t run_count;
    atomic_size_t next_run;
};

/* Moves the pages whose result is not below 0. Returns 0, or -1 if there is no memory for the
 * plan, in which case nothing was moved. */
int move_pages(struct transfer *t);

/* Reads a batch if the page cache holds all of it, without ever waiting for a medium. */
bool read_cached_pages(struct transfer *t);

#endif
