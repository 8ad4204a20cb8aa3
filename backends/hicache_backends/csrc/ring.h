/* A 3FS I/O ring: shared memory through which the FUSE daemon is asked to move blocks.
 *
 * The memory is shared with another process: every index and length read from it is checked.
 * Nothing here knows Python.
 */
#ifndef HICACHE_RING_H
#define HICACHE_RING_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UUID_BYTES = 16 };

/* Memory that the daemon has mapped. */
struct iov_memory {
    uint64_t address, bytes;
    uint8_t uuid[UUID_BYTES];
};

/* One I/O. `done` of the call is told its number. */
struct ring_op {
    uint64_t inode, offset, bytes;
    const struct iov_memory *memory; /* holds `address`; NULL: through the slot's own block */
    uint64_t address;
};

struct ring_setup {
    uint8_t *shared; /* the ring, already registered */
    uint32_t entries;
    uint32_t burst;  /* operations between two posts of the submit semaphore */
    sem_t *submitted;
    struct iov_memory staging; /* `entries` blocks, slot after slot */
    uint64_t staging_start;    /* in the registered memory */
    uint64_t block_bytes;
    int alarm_fd; /* an eventfd, written to while the daemon does not answer; below 0: none */
};

struct ring_counts {
    atomic_uint_fast64_t submitted, posts, waits, timed_out, late, impossible;
};

enum ring_state { RING_WORKS, RING_BROKEN, RING_STOPPED };

struct ring {
    struct ring_setup setup;
    struct ring_counts counts;
    atomic_int state;
    atomic_uint quarantined; /* slots whose call went back before their completion came */
    atomic_flag in_use;
    uint32_t cells; /* of each queue */
    uint32_t sqe_head, cqe_tail, free_count;
    uint64_t call, next_userdata;
    uint32_t *free_slots;
    struct ring_slot *slots;
};

/* The operations of one phase of a call. */
struct ring_call {
    size_t count;
    const struct ring_op *ops;
    int64_t deadline_ns;
    /* Before an operation is submitted, with its slot's block; false: leave it out. */
    bool (*prepare)(struct ring_call *call, size_t op, uint8_t *block);
    /* Bytes moved or -errno, once an operation; never more bytes than asked for. */
    void (*done)(struct ring_call *call, size_t op, const uint8_t *block, int64_t result);
    size_t left;
};

/* Bytes of the shared memory of a ring. */
size_t ring_bytes(uint32_t entries);

/* NULL if there is no memory. */
struct ring *ring_new(const struct ring_setup *setup);
void ring_free(struct ring *ring);

/* A call, or a look at late completions, has the ring to itself. */
bool ring_enter(struct ring *ring);
void ring_leave(struct ring *ring);

/* Runs every operation; returns when each is done or the deadline has passed. What is outstanding
 * then is done with -ETIMEDOUT (-ENOTCONN for a stopped ring, -EPROTO for a broken one), and its
 * slot stays out of use until its completion comes. */
void ring_run(struct ring *ring, struct ring_call *call);

/* Takes completions that came since the last call, unless one is in flight. */
void ring_reap_late(struct ring *ring);

struct ring_place {
    uint64_t inode, offset;
};

/* The I/Os that nobody waits for any more and that may still happen; room for `entries`. */
size_t ring_in_doubt(struct ring *ring, struct ring_place *places);

/* Whether an I/O that nobody waits for any more may still touch this memory. */
bool ring_may_touch(struct ring *ring, uint64_t address, uint64_t bytes);

/* Ends the call in flight, and lets no other begin: the daemon is known dead, or we close. */
void ring_stop(struct ring *ring);

#endif
