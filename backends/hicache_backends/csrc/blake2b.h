/* BLAKE2b (RFC 7693), keyed, with a digest of 16 bytes. */
#ifndef HICACHE_BLAKE2B_H
#define HICACHE_BLAKE2B_H

#include <stddef.h>
#include <stdint.h>

enum { BLAKE2B_BLOCK = 128, BLAKE2B_MAX_KEY = 64 };

struct blake2b {
    uint64_t h[8];
};

/* The state after the key's block, from which any number of messages can be hashed.
 * 1 <= key_size <= BLAKE2B_MAX_KEY. */
void blake2b_keyed(struct blake2b *state, const uint8_t *key, size_t key_size);

/* The 16-byte digest of a message that follows the key's block; 1 <= size. */
void blake2b_finish(const struct blake2b *keyed, const uint8_t *message, size_t size,
                    uint8_t digest[16]);

#endif
