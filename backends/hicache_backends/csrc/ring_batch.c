#define _GNU_SOURCE
#include "ring_batch.h"

#include "copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* What one operation moves of a page, or of a run of records. */
struct part {
    size_t of;
    uint64_t at;
};

struct phase {
    struct ring_call call; /* first: the ring hands it back */
    struct transfer *t;
    struct ring_op *ops;
    struct part *parts;
    size_t *left; /* operations to come, a page */
    struct page_sum sum;
    struct records *records;
    enum record_phase record_phase;
};

/* Room for so many operations. 0, or -1 if there is no memory; free it in either case. */
static int alloc_phase(struct phase *phase, size_t room)
{
    phase->ops = malloc((room + 1) * sizeof *phase->ops);
    phase->parts = malloc((room + 1) * sizeof *phase->parts);
    phase->left = calloc(phase->t->count + 1, sizeof *phase->left);
    phase->call.ops = phase->ops;
    phase->call.deadline_ns = phase->t->deadline_ns;
    return phase->ops && phase->parts && phase->left ? 0 : -1;
}

static void free_phase(struct phase *phase)
{
    free(phase->ops), free(phase->parts), free(phase->left);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The operations, of at most a block each, on `bytes` from where `whole` begins. Returns how many. */
static size_t add_ops(struct phase *phase, size_t of, struct ring_op whole, uint64_t block_bytes)
{
    size_t n = 0;
    for (uint64_t at = 0; at < whole.bytes; at += block_bytes, n++) {
        struct ring_op *op = &phase->ops[phase->call.count];
        *op = whole;
        op->offset += at;
        op->address += at;
        op->bytes = least(whole.bytes - at, block_bytes);
        phase->parts[phase->call.count++] = (struct part){of, at};
    }
    return n;
}

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
    const struct iovec *piece = pieces_of(t, part->of);
    uint64_t at = part->at;
    for (; at >= piece->iov_len; piece++)
        at -= piece->iov_len;
    while (bytes) {
        size_t size = least(piece->iov_len - at, bytes);
        uint8_t *in_page = (uint8_t *)piece->iov_base + at;
        uint8_t *to = t->writing ? block : in_page, *from = t->writing ? in_page : block;
        if (!sum)
            memcpy(to, from, size);
        else if (t->writing)
            copy_and_sum(to, from, size, sum); /* the daemon reads it next */
        else
            stream_and_sum(to, from, size, sum);
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
    return phase->t->results[phase->parts[op].of] >= 0;
}

static void read_done(struct ring_call *call, size_t op, const uint8_t *block, int64_t result)
{
    struct phase *phase = (struct phase *)call;
    const struct part *part = &phase->parts[op];
    struct transfer *t = phase->t;
    uint64_t bytes = phase->ops[op].bytes;
    size_t left = --phase->left[part->of];
    bool whole = bytes == page_bytes(t, part->of), staged = !phase->ops[op].memory;
    if (result != (int64_t)bytes) {
        note(t, part->of, result < 0 ? result : (int64_t)part->at + result);
        if (staged && result > 0)
            copy_part(t, part, (uint8_t *)(uintptr_t)block, (uint64_t)result, NULL);
        return;
    }
    if (staged && whole) {
        begin_sum(t, part->of, &phase->sum);
        copy_part(t, part, (uint8_t *)(uintptr_t)block, bytes, &phase->sum);
        t->checksums[part->of] = page_sum_value(&phase->sum);
        return;
    }
    if (staged)
        copy_part(t, part, (uint8_t *)(uintptr_t)block, bytes, NULL);
    if (left == 0 && t->results[part->of] == (int64_t)page_bytes(t, part->of))
        sum_page(t, part->of);
}

/* The parts of a page come here in order. */
static bool prepare_write(struct ring_call *call, size_t op, uint8_t *block)
{
    struct phase *phase = (struct phase *)call;
    const struct part *part = &phase->parts[op];
    struct transfer *t = phase->t;
    if (t->results[part->of] < 0)
        return false;
    if (phase->ops[op].memory) {
        if (part->at == 0)
            sum_page(t, part->of);
        return true;
    }
    if (part->at == 0)
        begin_sum(t, part->of, &phase->sum);
    uint64_t bytes = page_bytes(t, part->of);
    bytes = bytes > part->at ? least(bytes - part->at, phase->ops[op].bytes) : 0;
    memset(block + bytes, 0, phase->ops[op].bytes - bytes);
    if (bytes) {
        copy_part(t, part, block, bytes, &phase->sum);
        t->checksums[part->of] = page_sum_value(&phase->sum);
    }
    return true;
}

static void write_done(struct ring_call *call, size_t op, const uint8_t *block, int64_t result)
{
    (void)block;
    struct phase *phase = (struct phase *)call;
    if (result != (int64_t)phase->ops[op].bytes)
        note(phase->t, phase->parts[op].of, result < 0 ? result : -EIO);
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
    struct phase phase = {.t = t};
    size_t room = 0;
    for (size_t i = 0; i < t->count; i++)
        room += (page_bytes(t, i) + batch->padded_bytes) / block_bytes + 1;
    int status = alloc_phase(&phase, room);
    for (size_t i = 0; status == 0 && i < t->count; i++) {
        int64_t inode = t->results[i] < 0 ? t->results[i]
                                          : inode_of(inodes, t->fds[i], batch->device);
        uint64_t bytes = page_bytes(t, i);
        t->results[i] = inode < 0 ? inode : (int64_t)bytes; /* until something else is noted */
        if (inode < 0)
            continue;
        const struct iov_memory *memory = memory_of(batch, i);
        struct ring_op page = {(uint64_t)inode, (uint64_t)t->offsets[i], bytes, memory,
                               (uint64_t)(uintptr_t)pieces_of(t, i)->iov_base};
        if (t->writing && !memory && batch->padded_bytes > bytes)
            page.bytes = batch->padded_bytes;
        phase.left[i] = add_ops(&phase, i, page, block_bytes);
    }
    phase.call.prepare = t->writing ? prepare_write : prepare_read;
    phase.call.done = t->writing ? write_done : read_done;
    if (status == 0)
        ring_run(batch->ring, &phase.call);
    free_phase(&phase);
    return status;
}

/* --- records -------------------------------------------------------------------------------- */

static bool prepare_records(struct ring_call *call, size_t op, uint8_t *block)
{
    struct phase *phase = (struct phase *)call;
    const struct part *part = &phase->parts[op];
    memcpy(block, phase->records->runs[part->of].memory + part->at, phase->ops[op].bytes);
    return true;
}

static void records_done(struct ring_call *call, size_t op, const uint8_t *block, int64_t result)
{
    (void)block;
    struct phase *phase = (struct phase *)call;
    const struct part *part = &phase->parts[op];
    uint64_t bytes = phase->ops[op].bytes, moved = result < 0 ? 0 : (uint64_t)result;
    if (moved < bytes)
        fail_records(phase->t, phase->records, phase->record_phase, part->of, part->at + moved,
                     part->at + bytes, result < 0 ? (int)-result : EIO);
}

/* The page of a record that was not written fails. */
static int put_records(struct ring_batch *batch, struct inodes *inodes, enum record_phase which)
{
    struct transfer *t = batch->t;
    struct records *r = batch->records;
    uint64_t block_bytes = batch->ring->setup.block_bytes;
    struct phase phase = {.t = t, .records = r, .record_phase = which};
    size_t room = 0;
    begin_records(t, r, which, block_bytes);
    for (size_t i = 0; i < r->run_count; i++)
        room += r->runs[i].bytes / block_bytes + 1;
    int status = alloc_phase(&phase, room);
    for (size_t i = 0; status == 0 && i < r->run_count; i++) {
        const struct record_run *run = &r->runs[i];
        int64_t inode = run->touched ? inode_of(inodes, run->fd, batch->device) : 0;
        if (inode < 0)
            fail_records(t, r, which, i, 0, run->bytes, (int)-inode);
        else if (run->touched)
            add_ops(&phase, i,
                    (struct ring_op){.inode = (uint64_t)inode, .offset = (uint64_t)run->offset,
                                     .bytes = run->bytes},
                    block_bytes);
    }
    phase.call.prepare = prepare_records;
    phase.call.done = records_done;
    if (status == 0 && phase.call.count)
        ring_run(batch->ring, &phase.call);
    free_phase(&phase);
    return status;
}

int ring_move_pages(struct ring_batch *batch)
{
    struct inodes inodes = {0, malloc((2 * batch->t->count + 1) * sizeof *inodes.known)};
    int status = inodes.known ? 0 : -1;
    if (status == 0 && batch->records)
        status = put_records(batch, &inodes, VOID_OLD);
    if (status == 0)
        status = move_data(batch, &inodes);
    if (status == 0 && batch->records) {
        complete_records(batch->t, batch->records);
        status = put_records(batch, &inodes, PUT_NEW);
    }
    free(inodes.known);
    return status;
}
