#define _GNU_SOURCE
#include "records.h"

#include "clock.h"
#include "crc32c.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t write_all(int fd, const uint8_t *data, size_t size, int64_t offset)
{
    size_t written = 0;
    while (written < size) {
        ssize_t n = pwrite(fd, data + written, size - written, offset + (int64_t)written);
        if (n > 0) {
            written += (size_t)n;
        } else if (n == 0) {
            errno = EIO;
            break;
        } else if (errno != EINTR) {
            break;
        }
    }
    return written;
}

/* Write the records at `places`, or zeros where `bytes` is NULL. The page of a record that was
 * not written whole fails. */
static void put_records(struct transfer *t, struct place *places, size_t count,
                        const uint8_t *bytes, uint8_t *buffer)
{
    sort_places(places, count);
    memset(buffer, 0, count * RECORD_BYTES);
    for (size_t i = 0, n; i < count; i += n) {
        n = neighbours(&places[i], count - i, t->max_bytes);
        for (size_t k = 0; bytes && k < n; k++)
            memcpy(buffer + k * RECORD_BYTES, bytes + places[i + k].index * RECORD_BYTES,
                   RECORD_BYTES);
        size_t written = 0;
        errno = ETIMEDOUT;
        if (bytes || now_ns() < t->deadline_ns) /* pages already written deserve their records */
            written = write_all(places[i].fd, buffer, n * RECORD_BYTES, places[i].offset);
        for (size_t k = written / RECORD_BYTES; k < n; k++)
            t->results[places[i + k].index] = -errno;
    }
}

size_t place_records(const struct transfer *t, const struct records *r, bool old,
                            struct place *places)
{
    size_t n = 0;
    for (size_t i = 0; i < t->count; i++)
        if (r->fds[i] >= 0 && t->results[i] >= 0 && (r->was_used[i] || !old))
            places[n++] = (struct place){r->fds[i], r->offsets[i], RECORD_BYTES, i};
    return n;
}

static void store_le(uint8_t *target, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        target[i] = (uint8_t)(value >> (8 * i));
}

void complete_records(const struct transfer *t, const struct records *r)
{
    for (size_t i = 0; i < t->count; i++)
        if (r->fds[i] >= 0 && t->results[i] >= 0) {
            uint8_t *record = r->bytes + i * RECORD_BYTES;
            store_le(record + RECORD_CHECKSUM, t->checksums[i], 8);
            store_le(record + RECORD_CRC, crc32c(0, record, RECORD_CRC), 4);
        }
}

int write_pages(struct transfer *t, const struct records *r)
{
    struct place *places = malloc((t->count + 1) * sizeof *places);
    uint8_t *buffer = malloc((t->count + 1) * RECORD_BYTES);
    int status = places && buffer ? 0 : -1;
    if (status == 0) {
        put_records(t, places, place_records(t, r, true, places), NULL, buffer);
        status = move_pages(t);
    }
    if (status == 0) {
        complete_records(t, r);
        put_records(t, places, place_records(t, r, false, places), r->bytes, buffer);
    }
    free(buffer);
    free(places);
    return status;
}
