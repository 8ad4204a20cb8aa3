#define _GNU_SOURCE
#include "transfer.h"

#include "clock.h"
#include "crc32c.h"
#include "threads.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_IOV = 1024,          /* the kernel's limit on the pieces of a call */
    CACHE_BYTES = 256 << 10, /* moved and checksummed in one go: stays in a core's own cache */
    RUNS_A_THREAD = 4,       /* so that threads end together and sum while others wait for I/O */
    MIN_RUN_BYTES = 1 << 20, /* runs are not cut smaller than this */
    SECTOR_BYTES = 512,
};

/* --- a run: a cursor that walks through its pages and pieces ------------------------------ */

struct cursor {
    const struct transfer *t;
    const struct run *run;
    size_t page, piece, in_piece;
    uint64_t in_page;
    int64_t offset;
    struct page_sum sum;
};

static size_t batch_index(const struct cursor *at)
{
    return at->run->places[at->page].index;
}

static void begin_page(struct cursor *at, size_t page)
{
    at->page = page;
    at->piece = at->in_piece = 0;
    at->in_page = 0;
    if (page < at->run->count) {
        const struct place *place = &at->run->places[page];
        at->offset = place->offset;
        page_sum_begin(&at->sum, at->t->digests + place->index * DIGEST_BYTES, place->bytes);
    }
}

/* The pieces from the cursor on, of at most `max_bytes`; returns their bytes. */
static size_t gather(const struct cursor *at, size_t max_bytes, bool one_page,
                     struct iovec iov[MAX_IOV], int *iov_count)
{
    const struct transfer *t = at->t;
    size_t end = one_page ? at->page + 1 : at->run->count;
    size_t bytes = 0, skip = at->in_piece, piece = at->piece;
    int n = 0;
    for (size_t page = at->page; page < end && bytes < max_bytes; page++, piece = 0) {
        const struct iovec *pieces = t->iov + at->run->places[page].index * t->pieces;
        for (; piece < t->pieces && bytes < max_bytes; piece++, skip = 0) {
            char *base = (char *)pieces[piece].iov_base + skip;
            size_t size = pieces[piece].iov_len - skip;
            if (size > max_bytes - bytes)
                size = max_bytes - bytes;
            if (n && (char *)iov[n - 1].iov_base + iov[n - 1].iov_len == base) {
                iov[n - 1].iov_len += size;
            } else {
                if (n == MAX_IOV)
                    goto full;
                iov[n++] = (struct iovec){base, size};
            }
            bytes += size;
        }
    }
full:
    *iov_count = n;
    return bytes;
}

enum walk { MOVED = 1, SUMMED = 2 };

/* Go `bytes` on. MOVED: pages passed are done. SUMMED: their checksums are taken. */
static void advance(struct cursor *at, size_t bytes, int walk)
{
    const struct transfer *t = at->t;
    while (bytes) {
        size_t index = batch_index(at);
        const struct iovec *piece = &t->iov[index * t->pieces + at->piece];
        size_t size = piece->iov_len - at->in_piece;
        if (size > bytes)
            size = bytes;
        if (walk & SUMMED)
            page_sum_add(&at->sum, (char *)piece->iov_base + at->in_piece, size);
        bytes -= size;
        at->in_piece += size;
        at->in_page += size;
        at->offset += (int64_t)size;
        if (at->in_piece == piece->iov_len) {
            at->piece++;
            at->in_piece = 0;
        }
        if (at->in_page == at->run->places[at->page].bytes) {
            if (walk & SUMMED)
                t->checksums[index] = page_sum_value(&at->sum);
            if (walk & MOVED)
                t->results[index] = (int64_t)at->in_page;
            begin_page(at, at->page + 1);
        }
    }
}

/* Give up the rest of the run: the page at the cursor with `first`, those after it with `rest`. */
static void give_up(struct cursor *at, int64_t first, int64_t rest)
{
    for (; at->page < at->run->count; at->page++, first = rest)
        at->t->results[batch_index(at)] = first;
}

static ssize_t move(const struct transfer *t, int fd, const struct iovec *iov, int n, off_t offset)
{
    if (t->writing)
        return pwritev(fd, iov, n, offset);
    if (t->only_cached)
        return preadv2(fd, iov, n, offset, RWF_NOWAIT);
    return preadv(fd, iov, n, offset);
}

static void sum_up_to(struct cursor *sums, const struct cursor *at, size_t ahead)
{
    if (sums->offset < at->offset || sums->page < at->page)
        *sums = *at; /* a failed page was skipped */
    size_t summed = (size_t)(sums->offset - at->offset);
    if (summed < ahead)
        advance(sums, ahead - summed, SUMMED);
}

static void move_run(const struct transfer *t, const struct run *run)
{
    struct iovec iov[MAX_IOV];
    int fd = run->places[0].fd, n_iov, flags = fcntl(fd, F_GETFL);
    bool direct = flags >= 0 && flags & O_DIRECT, one_page = false;
    size_t max_bytes = direct || t->max_bytes < CACHE_BYTES ? t->max_bytes : CACHE_BYTES;
    struct cursor at = {.t = t, .run = run}, sums;
    begin_page(&at, 0);
    sums = at;
    while (at.page < run->count) {
        if (now_ns() >= t->deadline_ns) {
            give_up(&at, -ETIMEDOUT, -ETIMEDOUT);
            return;
        }
        size_t page = at.page;
        size_t wanted = gather(&at, max_bytes, one_page, iov, &n_iov);
        if (t->writing)
            sum_up_to(&sums, &at, wanted);
        ssize_t moved = move(t, fd, iov, n_iov, at.offset);
        if (moved > 0) {
            advance(&at, (size_t)moved, t->writing ? MOVED : MOVED | SUMMED);
            if (direct && moved % SECTOR_BYTES) /* the file's end; a call from here is EINVAL */
                give_up(&at, t->writing ? -EIO : (int64_t)at.in_page, t->writing ? -EIO : 0);
        } else if (moved == 0 && !t->writing) {
            give_up(&at, (int64_t)at.in_page, 0);
        } else if (moved < 0 && errno == EINTR) {
            continue;
        } else if (!one_page && wanted > run->places[page].bytes - at.in_page) {
            one_page = true; /* find out which of the pages it was */
        } else {
            t->results[batch_index(&at)] = moved < 0 ? -errno : -EIO;
            begin_page(&at, at.page + 1);
        }
    }
}

/* --- threads made for the call ------------------------------------------------------------ */

static void *work(void *argument)
{
    struct transfer *t = argument;
    for (;;) {
        size_t i = atomic_fetch_add(&t->next_run, 1);
        if (i >= t->run_count)
            return NULL;
        move_run(t, &t->runs[i]);
    }
}

static void move_runs(struct transfer *t)
{
    size_t wanted = t->threads < t->run_count ? t->threads : t->run_count;
    atomic_store(&t->next_run, 0);
    run_on_threads(wanted, work, t);
}

static uint64_t page_bytes(const struct transfer *t, size_t index)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < t->pieces; i++)
        bytes += t->iov[index * t->pieces + i].iov_len;
    return bytes;
}

/* A run is one thread's work at a time, so a batch is cut into enough of them for all. */
static uint64_t run_bytes(const struct transfer *t, uint64_t total)
{
    uint64_t share = total / t->threads / RUNS_A_THREAD;
    if (share < MIN_RUN_BYTES)
        share = MIN_RUN_BYTES;
    return share < t->max_bytes ? share : t->max_bytes;
}

int move_pages(struct transfer *t)
{
    struct place *places = malloc((t->count + 1) * sizeof *places);
    t->runs = malloc((t->count + 1) * sizeof *t->runs);
    int status = places && t->runs ? 0 : -1;
    if (status == 0) {
        size_t n = 0;
        uint64_t total = 0;
        for (size_t i = 0; i < t->count; i++)
            if (t->results[i] >= 0) {
                places[n] = (struct place){t->fds[i], t->offsets[i], page_bytes(t, i), i};
                total += places[n++].bytes;
            }
        t->run_count = plan_runs(places, n, run_bytes(t, total), t->runs);
        move_runs(t);
    }
    free(t->runs);
    free(places);
    return status;
}

/* With O_DIRECT, RWF_NOWAIT keeps a read from waiting for a place in the queue, not for the device. */
static bool any_direct(const struct transfer *t)
{
    for (size_t i = 0; i < t->count; i++) {
        if (i && t->fds[i] == t->fds[i - 1])
            continue;
        int flags = fcntl(t->fds[i], F_GETFL);
        if (flags >= 0 && flags & O_DIRECT)
            return true;
    }
    return false;
}

bool read_cached_pages(struct transfer *t)
{
    if (any_direct(t))
        return false;
    struct transfer attempt = *t;
    attempt.only_cached = true;
    attempt.threads = 1;
    if (move_pages(&attempt) < 0)
        return false;
    bool all = true;
    for (size_t i = 0; i < t->count; i++) {
        all = all && t->results[i] == (int64_t)page_bytes(t, i);
        if (!all)
            t->results[i] = 0;
    }
    return all;
}
