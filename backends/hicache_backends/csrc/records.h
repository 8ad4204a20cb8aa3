/* Writing pages and the index records that name them, in an order that survives a kill. */
#ifndef HICACHE_RECORDS_H
#define HICACHE_RECORDS_H

#include "transfer.h"

/* A record, see segment/format.py: its size and the offsets of what is filled in here. */
enum { RECORD_BYTES = 64, RECORD_CHECKSUM = 40, RECORD_SIZE = 48, RECORD_CRC = 56 };

struct records {
    const int32_t *fds; /* below 0: the page has no record */
    const int64_t *offsets;
    const uint8_t *was_used;
    uint8_t *bytes; /* RECORD_BYTES to a page */
};

/* Old records are voided, pages written, then their records: see WriteBatch in io/engine.py.
 * Returns 0, or -1 if there is no memory, in which case no page was written. */
int write_pages(struct transfer *t, const struct records *r);

/* The places of the records of pages that have not failed: of all, or of the `old` ones that were
 * in use. Returns how many. */
size_t place_records(const struct transfer *t, const struct records *r, bool old,
                     struct place *places);

/* Fills in checksum and record CRC of the pages that have not failed. */
void complete_records(const struct transfer *t, const struct records *r);

#endif
