/* Copying a part of a page and taking its checksum in one pass.
 *
 * What is added to `sum` is exactly what was put there, whoever changes the source meanwhile. */
#ifndef HICACHE_COPY_H
#define HICACHE_COPY_H

#include "crc32c.h"

/* For bytes that are read again at once. */
void copy_and_sum(void *to, const void *from, size_t size, struct page_sum *sum);

/* Past the caches, which a batch would only sweep. */
void stream_and_sum(void *to, const void *from, size_t size, struct page_sum *sum);

#endif
