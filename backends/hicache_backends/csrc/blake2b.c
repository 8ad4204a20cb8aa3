#include "blake2b.h"

#include <string.h>

static const uint64_t initial[8] = {
    0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu, 0xa54ff53a5f1d36f1u,
    0x510e527fade682d1u, 0x9b05688c2b3e6c1fu, 0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u,
};

static const uint8_t schedule[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static inline uint64_t read_le(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static inline uint64_t rotate_right(uint64_t x, unsigned n)
{
    return x >> n | x << (64 - n);
}

static inline void mix(uint64_t v[16], int a, int b, int c, int d, uint64_t x, uint64_t y)
{
    v[a] += v[b] + x;
    v[d] = rotate_right(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = rotate_right(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = rotate_right(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = rotate_right(v[b] ^ v[c], 63);
}

/* `total`: message bytes up to and with this block, the key's block included. */
static void compress(uint64_t h[8], const uint8_t block[BLAKE2B_BLOCK], uint64_t total, int last)
{
    uint64_t m[16], v[16];
    for (int i = 0; i < 16; i++)
        m[i] = read_le(block + 8 * i);
    memcpy(v, h, 8 * sizeof *v);
    memcpy(v + 8, initial, sizeof initial);
    v[12] ^= total;
    if (last)
        v[14] = ~v[14];
#pragma GCC unroll 12 /* so that the schedule's numbers are constants */
    for (int round = 0; round < 12; round++) {
        const uint8_t *s = schedule[round % 10];
        mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
        mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
        mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
        mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
        mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
        mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
        mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
        mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
    }
    for (int i = 0; i < 8; i++)
        h[i] ^= v[i] ^ v[i + 8];
}

void blake2b_keyed(struct blake2b *state, const uint8_t *key, size_t key_size)
{
    uint8_t block[BLAKE2B_BLOCK] = {0};
    memcpy(block, key, key_size);
    memcpy(state->h, initial, sizeof initial);
    state->h[0] ^= 0x01010000u ^ (uint64_t)key_size << 8 ^ 16;
    compress(state->h, block, BLAKE2B_BLOCK, 0);
}

void blake2b_finish(const struct blake2b *keyed, const uint8_t *message, size_t size,
                    uint8_t digest[16])
{
    struct blake2b state = *keyed;
    uint64_t total = BLAKE2B_BLOCK;
    uint8_t block[BLAKE2B_BLOCK] = {0};
    for (; size > BLAKE2B_BLOCK; message += BLAKE2B_BLOCK, size -= BLAKE2B_BLOCK) {
        total += BLAKE2B_BLOCK;
        compress(state.h, message, total, 0);
    }
    memcpy(block, message, size);
    compress(state.h, block, total + size, 1);
    for (int i = 0; i < 16; i++)
        digest[i] = (uint8_t)(state.h[i / 8] >> (8 * (i % 8)));
}
