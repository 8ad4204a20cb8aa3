#include "memory.h"

#include "copy.h"
#include "crc32c.h"
#include "threads.h"

#include <stdatomic.h>
#include <string.h>

static const size_t MIN_SHARE_BYTES = 2 << 20; /* less is done before another thread has begun */

static uint64_t bytes_of(const struct iovec *iov, size_t count)
{
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++)
        total += iov[i].iov_len;
    return total;
}

static void sum_page(const struct iovec *from, size_t count, struct page_sum *sum)
{
    for (size_t i = 0; i < count; i++)
        page_sum_add(sum, from[i].iov_base, from[i].iov_len);
}

/* Without `sum`: it is copied as memcpy does. */
static void copy_page(const struct iovec *from, const struct iovec *to, size_t to_count,
                      struct page_sum *sum)
{
    size_t skip = 0;
    for (const struct iovec *end = to + to_count; to < end; to++)
        for (size_t done = 0; done < to->iov_len;) {
            size_t size = from->iov_len - skip;
            if (size > to->iov_len - done)
                size = to->iov_len - done;
            char *into = (char *)to->iov_base + done, *out_of = (char *)from->iov_base + skip;
            if (sum)
                stream_and_sum(into, out_of, size, sum);
            else
                memcpy(into, out_of, size);
            done += size;
            skip += size;
            if (skip == from->iov_len) {
                from++;
                skip = 0;
            }
        }
}

static void work_on_page(const struct memory_work *work, size_t page)
{
    const struct iovec *from = work->from + page * work->from_pieces;
    struct page_sum sum;
    if (work->checksums)
        page_sum_begin(&sum, work->digests + page * DIGEST_BYTES,
                       bytes_of(from, work->from_pieces));
    if (work->to)
        copy_page(from, work->to + page * work->to_pieces, work->to_pieces,
                  work->checksums ? &sum : NULL);
    else
        sum_page(from, work->from_pieces, &sum);
    if (work->checksums)
        work->checksums[page] = page_sum_value(&sum);
}

struct shared_work {
    const struct memory_work *work;
    atomic_size_t next_page;
};

static void *take_pages(void *argument)
{
    struct shared_work *shared = argument;
    for (;;) {
        size_t page = atomic_fetch_add(&shared->next_page, 1);
        if (page >= shared->work->count)
            return NULL;
        work_on_page(shared->work, page);
    }
}

void work_on_memory(const struct memory_work *work, size_t threads)
{
    struct shared_work shared = {.work = work};
    size_t shares = bytes_of(work->from, work->count * work->from_pieces) / MIN_SHARE_BYTES;
    size_t most = shares < work->count ? shares : work->count;
    run_on_threads(threads < most ? threads : most, take_pages, &shared);
}
