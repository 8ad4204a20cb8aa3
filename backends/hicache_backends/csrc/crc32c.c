/* CRC-32C by folding (AVX-512), by the processor's instruction in three lanes, or by a table.
 *
 * Polynomials over GF(2) are kept reflected: bit 31 of a 32-bit value is the coefficient of x^0.
 * Appending n zero bits to a message multiplies its CRC by x^n modulo the polynomial, which is
 * how the CRCs of lanes that were computed side by side become one.
 */
#define _GNU_SOURCE
#include "crc32c.h"

#include <stdbool.h>
#include <string.h>

#define POLYNOMIAL 0x82F63B78u

typedef uint32_t (*update_fn)(uint32_t crc, const uint8_t *data, size_t size);

static struct {
    const char *name;
    update_fn update;
} implementations[4];

static uint32_t table[8][256];

/* x^n modulo the polynomial. */
static uint32_t power_of_x(unsigned n)
{
    uint32_t r = 0x80000000u;
    while (n--)
        r = (r >> 1) ^ (r & 1 ? POLYNOMIAL : 0);
    return r;
}

static void fill_table(void)
{
    for (unsigned i = 0; i < 256; i++) {
        uint32_t r = i;
        for (int bit = 0; bit < 8; bit++)
            r = (r >> 1) ^ (r & 1 ? POLYNOMIAL : 0);
        table[0][i] = r;
    }
    for (unsigned k = 1; k < 8; k++)
        for (unsigned i = 0; i < 256; i++)
            table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 255];
}

static uint32_t update_by_table(uint32_t crc, const uint8_t *p, size_t size)
{
    for (; size >= 8; p += 8, size -= 8) {
        crc ^= p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        crc = table[7][crc & 255] ^ table[6][crc >> 8 & 255] ^ table[5][crc >> 16 & 255] ^
              table[4][crc >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^
              table[0][p[7]];
    }
    while (size--)
        crc = (crc >> 8) ^ table[0][(crc ^ *p++) & 255];
    return crc;
}

#if defined(__x86_64__)

#include <immintrin.h>
#define HAVE_LANES 1
#define LANES_NAME "sse4.2"
#define LANES_TARGET __attribute__((target("sse4.2,pclmul")))
#define FOLD_TARGET __attribute__((target("sse4.2,pclmul,avx512f,avx512vl,avx512dq,vpclmulqdq")))

LANES_TARGET static inline uint32_t crc_byte(uint32_t crc, uint8_t byte)
{
    return _mm_crc32_u8(crc, byte);
}

LANES_TARGET static inline uint32_t crc_word(uint32_t crc, uint64_t word)
{
    return (uint32_t)_mm_crc32_u64(crc, word);
}

LANES_TARGET static inline uint64_t carryless(uint32_t a, uint32_t b)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

static bool have_lanes(void)
{
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

#elif defined(__aarch64__) && defined(__linux__)

#include <arm_acle.h>
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define HAVE_LANES 1
#define LANES_NAME "armv8"
#define LANES_TARGET __attribute__((target("+crc+crypto")))

LANES_TARGET static inline uint32_t crc_byte(uint32_t crc, uint8_t byte)
{
    return __crc32cb(crc, byte);
}

LANES_TARGET static inline uint32_t crc_word(uint32_t crc, uint64_t word)
{
    return __crc32cd(crc, word);
}

LANES_TARGET static inline uint64_t carryless(uint32_t a, uint32_t b)
{
    return (uint64_t)vmull_p64(a, b);
}

static bool have_lanes(void)
{
    unsigned long wanted = HWCAP_CRC32 | HWCAP_PMULL;
    return (getauxval(AT_HWCAP) & wanted) == wanted;
}

#endif

#ifdef HAVE_LANES

/* The instruction has a latency of three cycles and starts one a cycle: three lanes fill it. */
enum { LONG_LANE = 4096, SHORT_LANE = 256 };

struct shift {
    uint32_t by_one, by_two; /* lanes of zero bytes appended */
};

static struct shift long_shift, short_shift;

/* A product of two reflected 32-bit values is one place off, and the CRC of a word multiplies by
 * x^32: hence 33. */
static struct shift make_shift(unsigned lane_bytes)
{
    return (struct shift){power_of_x(8 * lane_bytes - 33), power_of_x(16 * lane_bytes - 33)};
}

static inline uint64_t load_word(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

LANES_TARGET static inline uint32_t three_lanes(uint32_t a, const uint8_t *p, size_t lane,
                                                const struct shift *shift)
{
    uint32_t b = 0, c = 0;
    for (size_t i = 0; i < lane; i += 8) {
        a = crc_word(a, load_word(p + i));
        b = crc_word(b, load_word(p + lane + i));
        c = crc_word(c, load_word(p + 2 * lane + i));
    }
    return c ^ crc_word(0, carryless(a, shift->by_two) ^ carryless(b, shift->by_one));
}

LANES_TARGET static uint32_t update_in_lanes(uint32_t crc, const uint8_t *p, size_t size)
{
    for (; size >= 3 * LONG_LANE; p += 3 * LONG_LANE, size -= 3 * LONG_LANE)
        crc = three_lanes(crc, p, LONG_LANE, &long_shift);
    for (; size >= 3 * SHORT_LANE; p += 3 * SHORT_LANE, size -= 3 * SHORT_LANE)
        crc = three_lanes(crc, p, SHORT_LANE, &short_shift);
    for (; size >= 8; p += 8, size -= 8)
        crc = crc_word(crc, load_word(p));
    while (size--)
        crc = crc_byte(crc, *p++);
    return crc;
}

#endif

#ifdef FOLD_TARGET

/* Multipliers that move a 128-bit block forward by so many bits, low half first. */
struct fold {
    uint64_t low, high;
};

static struct fold fold_256, fold_64, fold_48, fold_32, fold_16; /* named by bytes */

static struct fold make_fold(unsigned bytes)
{
    unsigned bits = 8 * bytes;
    return (struct fold){(uint64_t)power_of_x(bits + 63) << 32, (uint64_t)power_of_x(bits - 1) << 32};
}

FOLD_TARGET static inline __m512i broadcast(struct fold f)
{
    return _mm512_broadcast_i32x4(_mm_set_epi64x((long long)f.high, (long long)f.low));
}

FOLD_TARGET static inline __m512i fold_into(__m512i block, __m512i by, __m512i next)
{
    __m512i low = _mm512_clmulepi64_epi128(block, by, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(block, by, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96); /* exclusive or of the three */
}

FOLD_TARGET static uint32_t update_by_folding(uint32_t crc, const uint8_t *p, size_t size)
{
    if (size < 256)
        return update_in_lanes(crc, p, size);
    __m512i far = broadcast(fold_256), near = broadcast(fold_64), x[4];
    for (int i = 0; i < 4; i++)
        x[i] = _mm512_loadu_si512(p + 64 * i);
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (p += 256, size -= 256; size >= 256 + READ_AHEAD_BYTES; p += 256, size -= 256)
        for (int i = 0; i < 4; i++) {
            _mm_prefetch((const char *)p + 64 * i + READ_AHEAD_BYTES, _MM_HINT_T1);
            x[i] = fold_into(x[i], far, _mm512_loadu_si512(p + 64 * i));
        }
    for (; size >= 256; p += 256, size -= 256)
        for (int i = 0; i < 4; i++)
            x[i] = fold_into(x[i], far, _mm512_loadu_si512(p + 64 * i));
    for (int i = 1; i < 4; i++)
        x[i] = fold_into(x[i - 1], near, x[i]);
    /* The four blocks of the last register, each moved to where the fourth stands. */
    __m512i last = x[3];
    __m512i by = _mm512_set_epi64(0, 0, (long long)fold_16.high, (long long)fold_16.low,
                                  (long long)fold_32.high, (long long)fold_32.low,
                                  (long long)fold_48.high, (long long)fold_48.low);
    __m512i moved = fold_into(last, by, _mm512_maskz_mov_epi64(0xC0, last));
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(moved),
                                    _mm512_extracti64x4_epi64(moved, 1));
    __m128i block = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    crc = crc_word(0, (uint64_t)_mm_cvtsi128_si64(block));
    crc = crc_word(crc, (uint64_t)_mm_extract_epi64(block, 1));
    return update_in_lanes(crc, p, size);
}

static bool have_folding(void)
{
    return have_lanes() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("vpclmulqdq");
}

#endif

void crc32c_init(void)
{
    size_t n = 0;
    fill_table();
#ifdef HAVE_LANES
    long_shift = make_shift(LONG_LANE);
    short_shift = make_shift(SHORT_LANE);
#endif
#ifdef FOLD_TARGET
    fold_256 = make_fold(256);
    fold_64 = make_fold(64);
    fold_48 = make_fold(48);
    fold_32 = make_fold(32);
    fold_16 = make_fold(16);
    if (have_folding()) {
        implementations[n].name = "avx512";
        implementations[n++].update = update_by_folding;
    }
#endif
#ifdef HAVE_LANES
    if (have_lanes()) {
        implementations[n].name = LANES_NAME;
        implementations[n++].update = update_in_lanes;
    }
#endif
    implementations[n].name = "table";
    implementations[n].update = update_by_table;
}

const char *crc32c_name(size_t index)
{
    return index < sizeof implementations / sizeof *implementations ? implementations[index].name
                                                                     : NULL;
}

uint32_t crc32c_by(size_t index, uint32_t crc, const void *data, size_t size)
{
    return ~implementations[index].update(~crc, data, size);
}

uint32_t crc32c(uint32_t crc, const void *data, size_t size)
{
    return crc32c_by(0, crc, data, size);
}

void page_sum_begin(struct page_sum *sum, const uint8_t *digest, uint64_t page_bytes)
{
    sum->low = sum->high = crc32c(0, digest, DIGEST_BYTES);
    sum->first_half_left = page_bytes / 2;
}

void page_sum_add(struct page_sum *sum, const void *data, size_t size)
{
    size_t first = size < sum->first_half_left ? size : (size_t)sum->first_half_left;
    if (first)
        sum->low = crc32c(sum->low, data, first);
    if (size > first)
        sum->high = crc32c(sum->high, (const char *)data + first, size - first);
    sum->first_half_left -= first;
}
