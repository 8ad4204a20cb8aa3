/* The least that reads pages through a ring: nothing that comes back is checked. */
#define _GNU_SOURCE
#include "crc32c.h"

#include <semaphore.h>
#include <stdint.h>
#include <string.h>

struct arguments {
    uint8_t buffer[16];
    uint64_t buffer_offset, inode, offset, bytes, userdata;
};
struct completion {
    int32_t index, reserved;
    int64_t result;
    uint64_t userdata;
};
struct submission {
    int32_t index, pad;
    uint64_t userdata;
};

/* Page i of `count` comes from `offsets[i]` and goes to `slot * page_bytes` of the iov; with a
 * `target` it is copied there, to place i, and checksummed. Returns how many pages came whole. */
int64_t bare_read(uint8_t *shared, uint32_t entries, uint32_t burst, sem_t *submitted,
                  const uint8_t uuid[16], uint64_t inode, const int64_t *offsets, uint64_t count,
                  uint64_t page_bytes, const uint8_t *iov, uint8_t *target, uint64_t *sums)
{
    uint32_t n = entries + 1;
    int32_t *marks = (int32_t *)(void *)shared;
    struct arguments *arguments = (void *)(shared + 16);
    struct completion *completions = (void *)(shared + 16 + 56ul * n);
    struct submission *submissions = (void *)(shared + 16 + 80ul * n);
    sem_t *completed = (void *)(shared + 16 + 96ul * n);
    int32_t free_slots[entries];
    uint64_t page_of[entries];
    static const uint8_t digest[DIGEST_BYTES];
    uint32_t free_count = 0, sent = 0;
    int64_t whole = 0;
    for (uint32_t i = 0; i < entries; i++)
        free_slots[free_count++] = (int32_t)i;
    for (uint64_t next = 0, done = 0; done < count;) {
        int32_t head = marks[0], taken = __atomic_load_n(&marks[1], __ATOMIC_ACQUIRE);
        for (sent = 0; next < count && free_count && sent < burst; next++, sent++) {
            if ((head + 1) % (int32_t)n == taken) /* a cell may be in use after its slot was */
                break;
            int32_t slot = free_slots[--free_count];
            struct arguments *a = &arguments[slot];
            memcpy(a->buffer, uuid, 16);
            page_of[slot] = next;
            a->buffer_offset = (uint64_t)slot * page_bytes;
            a->inode = inode;
            a->offset = (uint64_t)offsets[next];
            a->bytes = page_bytes;
            submissions[head] = (struct submission){.index = slot};
            head = (head + 1) % (int32_t)n;
        }
        if (sent) {
            __atomic_store_n(&marks[0], head, __ATOMIC_RELEASE);
            sem_post(submitted);
            if (free_count && next < count)
                continue;
        }
        while (sem_wait(completed) != 0)
            ;
        int32_t end = __atomic_load_n(&marks[2], __ATOMIC_ACQUIRE), tail = marks[3];
        for (; tail != end; tail = (tail + 1) % (int32_t)n, done++) {
            int32_t slot = completions[tail].index;
            uint64_t page = page_of[slot];
            whole += completions[tail].result == (int64_t)page_bytes;
            if (target) {
                struct page_sum sum;
                uint8_t *to = target + page * page_bytes;
                memcpy(to, iov + (uint64_t)slot * page_bytes, page_bytes);
                page_sum_begin(&sum, digest, page_bytes);
                page_sum_add(&sum, to, page_bytes);
                sums[page] = page_sum_value(&sum);
            }
            free_slots[free_count++] = slot;
        }
        __atomic_store_n(&marks[3], tail, __ATOMIC_RELEASE);
    }
    return whole;
}

void bare_init(void)
{
    crc32c_init();
}
