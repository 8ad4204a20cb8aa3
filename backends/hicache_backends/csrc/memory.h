/* Work on the pages of a batch that touches memory alone. Nothing here knows Python. */
#ifndef HICACHE_MEMORY_H
#define HICACHE_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* Pages and what becomes of each: it is copied, if there is somewhere to copy it to, and summed, if
 * there are checksums to fill in. Both sides of a page have the same number of bytes. */
struct memory_work {
    size_t count;
    const struct iovec *from, *to; /* `to` may be NULL */
    size_t from_pieces, to_pieces; /* to a page */
    const uint8_t *digests;
    uint64_t *checksums; /* may be NULL; of what was put there */
};

/* Does it on at most `threads` threads, this one among them. */
void work_on_memory(const struct memory_work *work, size_t threads);

#endif
