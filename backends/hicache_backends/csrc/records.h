/* Writing pages and the index records that name them, in an order that survives a kill. */
#ifndef HICACHE_RECORDS_H
#define HICACHE_RECORDS_H

#include "transfer.h"

/* A record, see segment/format.py: its size and the offsets of what is filled in here. */
enum { RECORD_BYTES = 64, RECORD_CHECKSUM = 40, RECORD_SIZE = 48, RECORD_CRC = 56 };

/* A range of an index file, and memory with what belongs there: one write. */
struct record_run {
    int fd;
    int64_t offset;
    uint8_t *memory;
    uint64_t bytes;
    bool touched; /* holds a record of the phase */
};

struct records {
    const int32_t *fds; /* below 0: the page has no record */
    const int64_t *offsets;
    const uint8_t *was_used;
    uint8_t *bytes; /* RECORD_BYTES to a page */
    bool given;     /* the runs are those of the caller; else neighbouring records make one */
    size_t run_count;
    struct record_run *runs;
    size_t *run_of;       /* each page's */
    struct place *places; /* room to find neighbours */
    uint8_t *spare;       /* the memory of their runs */
};

/* Voiding what was in use, or writing the records of pages that are there. */
enum record_phase { VOID_OLD, PUT_NEW };

/* Room for a batch, and for so many runs if they are given. 0, or -1 if there is no memory. Free
 * with `free_records` in either case. */
int alloc_records(struct records *r, size_t count, size_t runs);
void free_records(struct records *r);

/* Old records are voided, pages written, then their records: see WriteBatch in io/engine.py.
 * Returns 0, or -1 if there is no memory, in which case no page was written. */
int write_pages(struct transfer *t, struct records *r);

/* Puts the records of pages that have not failed, or zeros for them, into the memory of the runs,
 * of which those that are touched are then to be written. `max_bytes`: of neighbours. */
void begin_records(const struct transfer *t, struct records *r, enum record_phase phase,
                   uint64_t max_bytes);

/* The bytes from `start` to `end` of a run were not written: the pages of the records there fail
 * with this errno, and zeros are put in the place of the records. */
void fail_records(const struct transfer *t, struct records *r, enum record_phase phase, size_t run,
                  uint64_t start, uint64_t end, int number);

/* Fills in checksum and record CRC of the pages that have not failed. */
void complete_records(const struct transfer *t, const struct records *r);

#endif
