#define _GNU_SOURCE
#include "ring_batch.h"

#include "crc32c.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

enum { CACHE_BYTES = 64 << 10 }; /* copied and checksummed in one go */

/* A part of a page, or a run of records. */
struct part {
    size_t first; /* page of the batch, or place */
    uint64_t at;  /* in the page */
    size_t count; /* of records */
};

struct phase {
    struct ring_call call; /* first: the ring hands it back */
    struct transfer *t;
    struct ring_op *ops;
    struct part *parts;
    size_t *left;               /* operations to come, a page */
    const struct place *places; /* of records */
    const uint8_t *records;     /* NULL: zeros */
    struct page_sum sum;
};

/* --- files ---------------------------------------------------------------------------------- */

struct inodes {
    size_t count;
    struct known {
        int fd;
        int64_t inode; /* or -errno */
    } *known;
};

/* Without a question to the daemon, which may be hung. */
static int64_t ask_inode(int fd, uint64_t device)
{
    struct statx facts;
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &facts) < 0)
        return -errno;
    if (makedev(facts.stx_dev_major, facts.stx_dev_minor) != device)
        return -ESTALE;
    return facts.stx_ino <= INT64_MAX ? (int64_t)facts.stx_ino : -EOVERFLOW;
}

static int64_t inode_of(struct inodes *inodes, int fd, uint64_t device)
{
    for (size_t i = inodes->count; i-- > 0;)
        if (inodes->known[i].fd == fd)
            return inodes->known[i].inode;
    int64_t inode = ask_inode(fd, device);
    inodes->known[inodes->count++] = (struct known){fd, inode};
    return inode;
}

/* --- pages ---------------------------------------------------------------------------------- */

static const struct iovec *pieces_of(const struct transfer *t, size_t page)
{
    return t->iov + page * t->pieces;
}

static uint64_t page_bytes(const struct transfer *t, size_t page)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < t->pieces; i++)
        bytes += pieces_of(t, page)[i].iov_len;
    return bytes;
}

static void note(struct transfer *t, size_t page, int64_t result)
{
    int64_t *noted = &t->results[page];
    if (*noted >= 0 && result < *noted)
        *noted = result;
}

/* Between a block and a part of a page, adding what arrives to `sum`, if any. */
static void copy_part(const struct transfer *t, const struct part *part, uint8_t *block,
                      uint64_t bytes, struct page_sum *sum)
{
    const struct iovec *piece = pieces_of(t, part->first);
    uint64_t at = part->at;
    for (; at >= piece->iov_len; piece++)
        at -= piece->iov_len;
    while (bytes) {
        size_t size = piece->iov_len - at < CACHE_BYTES ? piece->iov_len - at : CACHE_BYTES;
        if (size > bytes)
            size = bytes;
        uint8_t *in_page = (uint8_t *)piece->iov_base + at;
        memcpy(t->writing ? block : in_page, t->writing ? in_page : block, size);
        if (sum)
            page_sum_add(sum, t->writing ? block : in_page, size);
        block += size;
        bytes -= size;
        at += size;
        if (at == piece->iov_len) {
            piece++;
            at = 0;
        }
    }
}

static void begin_sum(const struct transfer *t, size_t page, struct page_sum *sum)
{
    page_sum_begin(sum, t->digests + page * DIGEST_BYTES, page_bytes(t, page));
}

static void sum_page(const struct transfer *t, size_t page)
{
    struct page_sum sum;
    begin_sum(t, page, &sum);
    for (size_t i = 0; i < t->pieces; i++)
        page_sum_add(&sum, pieces_of(t, page)[i].iov_base, pieces_of(t, page)[i].iov_len);
    t->checksums[page] = page_sum_value(&sum);
}

static bool prepare_read(struct ring_call *call, size_t op, uint8_t *block)
{
    (void)block;
    struct phase *phase = (struct phase *)call;
    return phase->t->results[phase->parts[op].first] >= 0;
}

static void read_done(struct ring_call *call, size_t op, const uint8_t *block, int64_t result)
{
    struct phase *phase = (struct phase *)call;
    const struct part *part = &phase->parts[op];
    struct transfer *t = phase->t;
    uint64_t bytes = phase->ops[op].bytes;
    size_t left = --phase->left[part->first];
    bool whole = bytes == page_bytes(t, part->first), staged = !phase->ops[op].memory;
    if (result != (int64_t)bytes) {
        note(t, part->first, result < 0 ? result : (int64_t)part->at + result);
        if (staged && result > 0)
            copy_part(t, part, (uint8_t *)(uintptr_t)block, (uint64_t)result, NULL);
        return;
    }
    if (staged && whole) {
        begin_sum(t, part->first, &phase->sum);
        copy_part(t, part, (uint8_t *)(uintptr_t)block, bytes, &phase->sum);
        t->checksums[part->first] = page_sum_value(&phase->sum);
        return;
    }
    if (staged)
        copy_part(t, part, (uint8_t *)(uintptr_t)block, bytes, NULL);
    if (left == 0 && t->results[part->first] == (int64_t)page_bytes(t, part->first))
        sum_page(t, part->first);
}

/* The parts of a page come here in order. */
static bool prepare_write(struct ring_call *call, size_t op, uint8_t *block)
{
    struct phase *phase = (struct phase *)call;
    const struct part *part = &phase->parts[op];
    struct transfer *t = phase->t;
    if (t->results[part->first] < 0)
        return false;
    if (phase->ops[op].memory) {
        if (part->at == 0)
            sum_page(t, part->first);
        return true;
    }
    if (part->at == 0)
        begin_sum(t, part->first, &phase->sum);
    copy_part(t, part, block, phase->ops[op].bytes, &phase->sum);
    t->checksums[part->first] = page_sum_value(&phase->sum);
    return true;
}

static void write_done(struct ring_call *call, size_t op, const uint8_t *block, int64_t result)
{
    (void)block;
    struct phase *phase = (struct phase *)call;
    if (result != (int64_t)phase->ops[op].bytes)
        note(phase->t, phase->parts[op].first, result < 0 ? result : -EIO);
}

/* The memory that holds the page as one range; NULL if none does. */
static const struct iov_memory *memory_of(const struct ring_batch *batch, size_t page)
{
    const struct iovec *pieces = pieces_of(batch->t, page);
    uint64_t address = (uint64_t)(uintptr_t)pieces->iov_base, end = address + pieces->iov_len;
    for (size_t i = 1; i < batch->t->pieces; i++) {
        if ((uint64_t)(uintptr_t)pieces[i].iov_base != end)
            return NULL;
        end += pieces[i].iov_len;
    }
    for (size_t i = 0; i < batch->memory_count; i++) {
        const struct iov_memory *memory = &batch->memories[i];
        if (address >= memory->address && end <= memory->address + memory->bytes)
            return memory;
    }
    return NULL;
}

static int move_data(struct ring_batch *batch, struct inodes *inodes)
{
    struct transfer *t = batch->t;
    uint64_t block_bytes = batch->ring->setup.block_bytes;
    size_t room = 1, n = 0;
    for (size_t i = 0; i < t->count; i++)
        room += page_bytes(t, i) / block_bytes + 1;
    struct ring_op *ops = malloc(room * sizeof *ops);
    struct part *parts = malloc(room * sizeof *parts);
    size_t *left = calloc(t->count + 1, sizeof *left);
    if (!ops || !parts || !left) {
        free(ops), free(parts), free(left);
        return -1;
    }
    for (size_t i = 0; i < t->count; i++) {
        int64_t inode = t->results[i] < 0 ? t->results[i]
                                          : inode_of(inodes, t->fds[i], batch->device);
        uint64_t bytes = page_bytes(t, i), size;
        t->results[i] = inode < 0 ? inode : (int64_t)bytes; /* until something else is noted */
        const struct iov_memory *memory = memory_of(batch, i);
        uint64_t address = (uint64_t)(uintptr_t)pieces_of(t, i)->iov_base;
        for (uint64_t at = 0; inode >= 0 && at < bytes; at += size, left[i]++) {
            size = bytes - at < block_bytes ? bytes - at : block_bytes;
            parts[n] = (struct part){.first = i, .at = at};
            ops[n++] = (struct ring_op){(uint64_t)inode, (uint64_t)t->offsets[i] + at, size,
                                        memory, address + at};
        }
    }
    struct phase phase = {.t = t, .ops = ops, .parts = parts, .left = left};
    phase.call = (struct ring_call){.count = n, .ops = ops, .deadline_ns = t->deadline_ns,
                                    .prepare = t->writing ? prepare_write : prepare_read,
                                    .done = t->writing ? write_done : read_done};
    ring_run(batch->ring, &phase.call);
    free(ops), free(parts), free(left);
    return 0;
}

/* --- records -------------------------------------------------------------------------------- */

static bool prepare_records(struct ring_call *call, size_t op, uint8_t *block)
{
    struct phase *phase = (struct phase *)call;
    const struct part *part = &phase->parts[op];
    memset(block, 0, part->count * RECORD_BYTES);
    for (size_t i = 0; phase->records && i < part->count; i++)
        memcpy(block + i * RECORD_BYTES,
               phase->records + phase->places[part->first + i].index * RECORD_BYTES, RECORD_BYTES);
    return true;
}

static void records_done(struct ring_call *call, size_t op, const uint8_t *block, int64_t result)
{
    (void)block;
    struct phase *phase = (struct phase *)call;
    const struct part *part = &phase->parts[op];
    if (result != (int64_t)phase->ops[op].bytes)
        for (size_t i = 0; i < part->count; i++)
            note(phase->t, phase->places[part->first + i].index, result < 0 ? result : -EIO);
}

/* Neighbouring records go out as one write. The page of a record that was not written fails. */
static int put_records(struct ring_batch *batch, struct inodes *inodes, bool old)
{
    struct transfer *t = batch->t;
    struct place *places = malloc((t->count + 1) * sizeof *places);
    struct ring_op *ops = malloc((t->count + 1) * sizeof *ops);
    struct part *parts = malloc((t->count + 1) * sizeof *parts);
    int status = places && ops && parts ? 0 : -1;
    size_t count = status ? 0 : place_records(t, batch->records, old, places), n = 0;
    if (count)
        sort_places(places, count);
    for (size_t i = 0, run; i < count; i += run) {
        run = neighbours(&places[i], count - i, batch->ring->setup.block_bytes);
        int64_t inode = inode_of(inodes, places[i].fd, batch->device);
        for (size_t k = 0; inode < 0 && k < run; k++)
            note(t, places[i + k].index, inode);
        if (inode < 0)
            continue;
        parts[n] = (struct part){.first = i, .count = run};
        ops[n++] = (struct ring_op){.inode = (uint64_t)inode, .offset = (uint64_t)places[i].offset,
                                    .bytes = run * RECORD_BYTES};
    }
    struct phase phase = {.t = t, .ops = ops, .parts = parts, .places = places,
                          .records = old ? NULL : batch->records->bytes};
    phase.call = (struct ring_call){.count = n, .ops = ops, .deadline_ns = t->deadline_ns,
                                    .prepare = prepare_records, .done = records_done};
    if (n)
        ring_run(batch->ring, &phase.call);
    free(places), free(ops), free(parts);
    return status;
}

int ring_move_pages(struct ring_batch *batch)
{
    struct inodes inodes = {0, malloc((2 * batch->t->count + 1) * sizeof *inodes.known)};
    int status = inodes.known ? 0 : -1;
    if (status == 0 && batch->records)
        status = put_records(batch, &inodes, true);
    if (status == 0)
        status = move_data(batch, &inodes);
    if (status == 0 && batch->records) {
        complete_records(batch->t, batch->records);
        status = put_records(batch, &inodes, false);
    }
    free(inodes.known);
    return status;
}
