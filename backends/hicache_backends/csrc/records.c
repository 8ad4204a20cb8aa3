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

int alloc_records(struct records *r, size_t count, size_t runs)
{
    r->bytes = malloc((count + 1) * RECORD_BYTES);
    r->run_of = malloc((count + 1) * sizeof *r->run_of);
    r->runs = malloc(((r->given ? runs : count) + 1) * sizeof *r->runs);
    if (!r->given) {
        r->places = malloc((count + 1) * sizeof *r->places);
        r->spare = malloc((count + 1) * RECORD_BYTES);
    }
    return r->bytes && r->run_of && r->runs && (r->given || (r->places && r->spare)) ? 0 : -1;
}

void free_records(struct records *r)
{
    free(r->bytes), free(r->run_of), free(r->runs), free(r->places), free(r->spare);
}

static bool takes_part(const struct transfer *t, const struct records *r, enum record_phase phase,
                       size_t page)
{
    return r->fds[page] >= 0 && t->results[page] >= 0 &&
           (phase == PUT_NEW || r->was_used[page]);
}

static void find_neighbours(const struct transfer *t, struct records *r, enum record_phase phase,
                            uint64_t max_bytes)
{
    size_t count = 0;
    for (size_t i = 0; i < t->count; i++)
        if (takes_part(t, r, phase, i))
            r->places[count++] = (struct place){r->fds[i], r->offsets[i], RECORD_BYTES, i};
    sort_places(r->places, count);
    r->run_count = 0;
    for (size_t i = 0, n; i < count; i += n, r->run_count++) {
        const struct place *first = &r->places[i];
        n = neighbours(first, count - i, max_bytes);
        for (size_t k = 0; k < n; k++)
            r->run_of[first[k].index] = r->run_count;
        r->runs[r->run_count] = (struct record_run){
            first->fd, first->offset, r->spare + i * RECORD_BYTES, n * RECORD_BYTES, false};
    }
}

void begin_records(const struct transfer *t, struct records *r, enum record_phase phase,
                   uint64_t max_bytes)
{
    if (!r->given)
        find_neighbours(t, r, phase, max_bytes);
    for (size_t i = 0; i < r->run_count; i++)
        r->runs[i].touched = false;
    for (size_t i = 0; i < t->count; i++) {
        if (!takes_part(t, r, phase, i))
            continue;
        struct record_run *run = &r->runs[r->run_of[i]];
        uint8_t *record = run->memory + (r->offsets[i] - run->offset);
        run->touched = true;
        if (phase == PUT_NEW)
            memcpy(record, r->bytes + i * RECORD_BYTES, RECORD_BYTES);
        else
            memset(record, 0, RECORD_BYTES);
    }
}

void fail_records(const struct transfer *t, struct records *r, enum record_phase phase, size_t run,
                  uint64_t start, uint64_t end, int number)
{
    for (size_t i = 0; i < t->count; i++) {
        if (!takes_part(t, r, phase, i) || r->run_of[i] != run)
            continue;
        uint64_t at = (uint64_t)(r->offsets[i] - r->runs[run].offset);
        if (at < end && at + RECORD_BYTES > start) {
            t->results[i] = -number;
            memset(r->runs[run].memory + at, 0, RECORD_BYTES);
        }
    }
}

static void put_records(const struct transfer *t, struct records *r, enum record_phase phase)
{
    begin_records(t, r, phase, t->max_bytes);
    for (size_t i = 0; i < r->run_count; i++) {
        const struct record_run *run = &r->runs[i];
        size_t written = 0;
        if (!run->touched)
            continue;
        errno = ETIMEDOUT;
        if (phase == PUT_NEW || now_ns() < t->deadline_ns) /* written pages deserve records */
            written = write_all(run->fd, run->memory, run->bytes, run->offset);
        if (written < run->bytes)
            fail_records(t, r, phase, i, written, run->bytes, errno);
    }
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

int write_pages(struct transfer *t, struct records *r)
{
    put_records(t, r, VOID_OLD);
    if (move_pages(t) < 0)
        return -1;
    complete_records(t, r);
    put_records(t, r, PUT_NEW);
    return 0;
}
