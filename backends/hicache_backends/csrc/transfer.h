/* Moving the pages of a batch between memory and files. Nothing here knows Python. */
#ifndef HICACHE_TRANSFER_H
#define HICACHE_TRANSFER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* A record, see segment/format.py: its size and the offsets of what is filled in here. */
enum { RECORD_BYTES = 64, RECORD_CHECKSUM = 40, RECORD_SIZE = 48, RECORD_CRC = 56 };

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
    size_t first_index; /* the lowest in the batch: runs begin in the batch's order */
};

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

struct records {
    const int32_t *fds; /* below 0: the page has no record */
    const int64_t *offsets;
    const uint8_t *was_used;
    uint8_t *bytes; /* RECORD_BYTES to a page */
};

/* Each returns 0, or -1 if there is no memory for its plan, in which case nothing was moved. */
int read_pages(struct transfer *t);
int write_pages(struct transfer *t, const struct records *r);

/* Reads a batch if the page cache holds all of it, without ever waiting for a medium. */
bool read_cached_pages(struct transfer *t);

#endif
