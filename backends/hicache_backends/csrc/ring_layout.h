/* What lies where in the shared memory of a ring: the layout of 3FS's daemon. */
#ifndef HICACHE_RING_LAYOUT_H
#define HICACHE_RING_LAYOUT_H

#include "ring.h"

enum { HEADER_BYTES = 16, SPARE_BYTES = 4096 };

struct ring_header {
    int32_t sqe_head, sqe_tail, cqe_head, cqe_tail;
};

struct io_arguments {
    uint8_t buffer[UUID_BYTES];
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

_Static_assert(sizeof(struct ring_header) == HEADER_BYTES && sizeof(struct io_arguments) == 56 &&
                   sizeof(struct completion) == 24 && sizeof(struct submission) == 16,
               "the layout of the daemon");
_Static_assert(sizeof(sem_t) == 32, "the daemon's semaphore");

static inline struct ring_header *header_of(const struct ring *ring)
{
    return (struct ring_header *)(void *)ring->setup.shared;
}

static inline struct io_arguments *arguments_of(const struct ring *ring, uint32_t slot)
{
    return (struct io_arguments *)(void *)(ring->setup.shared + HEADER_BYTES) + slot;
}

static inline struct completion *completion_at(const struct ring *ring, uint32_t cell)
{
    uint8_t *start = ring->setup.shared + HEADER_BYTES +
                     ring->cells * sizeof(struct io_arguments);
    return (struct completion *)(void *)start + cell;
}

static inline struct submission *submission_at(const struct ring *ring, uint32_t cell)
{
    uint8_t *start = ring->setup.shared + HEADER_BYTES +
                     ring->cells * (sizeof(struct io_arguments) + sizeof(struct completion));
    return (struct submission *)(void *)start + cell;
}

static inline sem_t *completed_of(const struct ring *ring)
{
    return (sem_t *)(void *)submission_at(ring, ring->cells);
}

static inline uint8_t *block_of(const struct ring *ring, uint32_t slot)
{
    return (uint8_t *)(uintptr_t)ring->setup.staging.address + slot * ring->setup.block_bytes;
}

#endif
