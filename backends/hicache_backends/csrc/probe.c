#include "probe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DIGEST = 16,
    ENTRY_HEAD = 7,
    MAX_ENTRY = 55,
    ENTRY_MARK = 64,
    READ_FLAG = 64,
    HASH_MASK = 0x3fffff,
};

#define BEHIND_BUCKET "\r\n$15\r\n"

static char *put(char *at, const void *bytes, size_t size)
{
    memcpy(at, bytes, size);
    return at + size;
}

static uint32_t read_le(const void *bytes)
{
    const uint8_t *b = bytes;
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static uint32_t read_be(const void *bytes)
{
    return __builtin_bswap32(read_le(bytes));
}

/* Linear hashing, as in keys.bucket. */
static uint32_t bucket_of(const char *digest, uint32_t buckets, uint32_t low)
{
    uint32_t hash = read_le(digest) & HASH_MASK, bucket = hash & (low - 1);
    return bucket < buckets - low ? hash & (2 * low - 1) : bucket;
}

static char *put_medium(char *at, const struct probe *probe, size_t medium)
{
    const struct route *route = &probe->route;
    size_t prefix_size = route->prefixes.size / route->media;
    uint32_t buckets = read_le(route->buckets.bytes + 4 * medium), low = 256;
    while (low <= HASH_MASK && low * 2 <= buckets)
        low *= 2;
    char head[256];
    size_t head_size = (size_t)snprintf(head, 64, "*3\r\n$4\r\nHGET\r\n$%zu\r\n", prefix_size + 3);
    put(head + head_size, route->prefixes.bytes + medium * prefix_size, prefix_size);
    head_size += prefix_size;
    const char *digest = probe->digests;
    for (size_t i = 0; i < probe->count; i++, digest += DIGEST) {
        uint32_t bucket = bucket_of(digest, buckets, low);
        char number[3] = {(char)bucket, (char)(bucket >> 8), (char)(bucket >> 16)};
        at = put(at, head, head_size);
        at = put(at, number, sizeof number);
        at = put(at, BEHIND_BUCKET, sizeof BEHIND_BUCKET - 1);
        at = put(at, digest + 1, DIGEST - 1);
        at = put(at, "\r\n", 2);
    }
    return at;
}

char *pages_request(const struct probe *probe, size_t *size)
{
    const struct route *route = &probe->route;
    size_t one = route->prefixes.size / route->media + 64;
    char *request = malloc(one * route->media * probe->count + route->tail.size + 1);
    if (!request)
        return NULL;
    char *at = request;
    for (size_t medium = 0; medium < route->media; medium++)
        at = put_medium(at, probe, medium);
    at = put(at, route->tail.bytes, route->tail.size);
    *size = (size_t)(at - request);
    return request;
}

static int ask_pages(int fd, const struct probe *probe, int64_t deadline_ns, struct reply *reply)
{
    size_t size, media = probe->route.media;
    char *request = pages_request(probe, &size);
    if (!request)
        return ENOMEM;
    int status = exchange(fd, request, size, media * probe->count + media + 1, deadline_ns, reply);
    free(request);
    return status;
}

static int ask_script(int fd, const struct probe *probe, int64_t deadline_ns, struct reply *reply)
{
    const struct span *before = &probe->route.before, *behind = &probe->route.behind;
    size_t digests = DIGEST * probe->count;
    char *request = malloc(before->size + 32 + digests + behind->size);
    if (!request)
        return ENOMEM;
    char *at = put(request, before->bytes, before->size);
    at += snprintf(at, 28, "$%zu\r\n", digests);
    at = put(at, probe->digests, digests);
    at = put(at, "\r\n", 2);
    at = put(at, behind->bytes, behind->size);
    int status = exchange(fd, request, (size_t)(at - request), 1, deadline_ns, reply);
    free(request);
    return status;
}

static bool is_entry(const char *value, int64_t size)
{
    return size >= ENTRY_HEAD && size <= MAX_ENTRY &&
           (uint8_t)value[0] == size - ENTRY_HEAD + ENTRY_MARK;
}

static bool is_fresh(const char *entry, const struct probe *probe)
{
    return probe->now - read_be(entry + 1) < probe->interval && entry[5] & READ_FLAG;
}

int read_pages(const struct probe *probe, struct probed *probed)
{
    size_t media = probe->route.media, count = probe->count, at = 0;
    bool plain = true, fresh = true;
    probed->locations = calloc(count + 1, sizeof *probed->locations);
    if (!probed->locations)
        return ENOMEM;
    for (size_t i = 0; i < media * count; i++) {
        const char *value;
        int64_t size;
        size_t one =
            next_reply(probed->reply.bytes + at, probed->reply.size - at, &value, &size);
        if (!one)
            return EPROTO;
        at += one;
        plain = plain && size != -2;
        struct span *location = &probed->locations[i % count];
        if (location->bytes || !is_entry(value, size))
            continue;
        *location = (struct span){value + ENTRY_HEAD, (size_t)size - ENTRY_HEAD};
    }
    while (probed->found < count && probed->locations[probed->found].bytes) {
        const char *entry = probed->locations[probed->found].bytes - ENTRY_HEAD;
        fresh = fresh && is_fresh(entry, probe);
        probed->found++;
    }
    probed->tail_at = at;
    const struct span *expected = &probe->route.expected;
    probed->sufficient = plain && fresh && (probed->found == count || !probe->why) &&
                         probed->reply.size - at == expected->size &&
                         !memcmp(probed->reply.bytes + at, expected->bytes, expected->size);
    return 0;
}

int run_probe(int fd, const struct probe *probe, int64_t deadline_ns, struct probed *probed)
{
    *probed = (struct probed){.found = 0};
    int status = ask_pages(fd, probe, deadline_ns, &probed->reply);
    if (status == 0)
        status = read_pages(probe, probed);
    if (status || probed->sufficient)
        return status;
    return ask_script(fd, probe, deadline_ns, &probed->script);
}
