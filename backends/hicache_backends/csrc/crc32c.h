/* CRC-32C (Castagnoli), and the 64-bit checksum of a page made from two of them. */
#ifndef HICACHE_CRC32C_H
#define HICACHE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

enum {
    DIGEST_BYTES = 16,
    READ_AHEAD_BYTES = 4096, /* asked for by us: the processor itself stops at each 4 KiB */
};

/* Choose the fastest implementation that this processor has. Call once, before anything else. */
void crc32c_init(void);

/* The names of the implementations usable here, fastest first; NULL past the last. */
const char *crc32c_name(size_t index);

/* CRC-32C of `size` bytes, going on from `crc` (0 to begin). */
uint32_t crc32c(uint32_t crc, const void *data, size_t size);

/* The same by implementation `index` of crc32c_name. */
uint32_t crc32c_by(size_t index, uint32_t crc, const void *data, size_t size);

/* The checksum of a page that arrives in parts; see io/engine.py for its definition. */
struct page_sum {
    uint32_t low, high;
    uint64_t first_half_left;
};

void page_sum_begin(struct page_sum *sum, const uint8_t *digest, uint64_t page_bytes);
void page_sum_add(struct page_sum *sum, const void *data, size_t size);

static inline uint64_t page_sum_value(const struct page_sum *sum)
{
    return (uint64_t)sum->high << 32 | sum->low;
}

#endif
