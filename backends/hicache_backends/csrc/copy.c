#include "copy.h"

#include <stdbool.h>
#include <string.h>

enum {
    CACHE_BYTES = 16 << 10, /* copied and checksummed in one go */
    LINE_BYTES = 64,
    TEE_BYTES = 4096, /* streamed, and kept in the innermost cache for the checksum */
};

void copy_and_sum(void *to, const void *from, size_t size, struct page_sum *sum)
{
    for (size_t at = 0, part; at < size; at += part) {
        part = size - at < CACHE_BYTES ? size - at : CACHE_BYTES;
        memcpy((char *)to + at, (const char *)from + at, part);
        page_sum_add(sum, (char *)to + at, part);
    }
}

#if defined(__x86_64__)

#include <immintrin.h>

/* A line that is written whole needs not be read first, which spares a third of the traffic. */
__attribute__((target("avx2"))) static void tee(uint8_t *to, const uint8_t *from, uint8_t *kept)
{
    for (size_t at = 0; at < TEE_BYTES; at += LINE_BYTES) {
        _mm_prefetch((const char *)from + at + READ_AHEAD_BYTES, _MM_HINT_T1);
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + 32));
        _mm256_stream_si256((__m256i *)(void *)(to + at), low);
        _mm256_stream_si256((__m256i *)(void *)(to + at + 32), high);
        _mm256_store_si256((__m256i *)(void *)(kept + at), low);
        _mm256_store_si256((__m256i *)(void *)(kept + at + 32), high);
    }
}

/* Returns how many bytes were copied; the rest is short. */
static size_t stream_lines(uint8_t *to, const uint8_t *from, size_t size, struct page_sum *sum)
{
    _Alignas(LINE_BYTES) uint8_t kept[TEE_BYTES];
    size_t done = -(uintptr_t)to % LINE_BYTES;
    if (!__builtin_cpu_supports("avx2") || size < done + TEE_BYTES)
        return 0;
    copy_and_sum(to, from, done, sum);
    for (; size - done >= TEE_BYTES; done += TEE_BYTES) {
        tee(to + done, from + done, kept);
        page_sum_add(sum, kept, TEE_BYTES);
    }
    _mm_sfence(); /* before anybody is told that it is there */
    return done;
}

#else

static size_t stream_lines(uint8_t *to, const uint8_t *from, size_t size, struct page_sum *sum)
{
    (void)to, (void)from, (void)size, (void)sum;
    return 0;
}

#endif

void stream_and_sum(void *to, const void *from, size_t size, struct page_sum *sum)
{
    size_t done = stream_lines(to, from, size, sum);
    copy_and_sum((char *)to + done, (const char *)from + done, size - done, sum);
}
