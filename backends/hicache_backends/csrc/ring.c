#define _GNU_SOURCE
#include "ring_layout.h"

#include "clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __GLIBC_PREREQ
#if __GLIBC_PREREQ(2, 30)
#define HAVE_CLOCKWAIT
#endif
#endif

enum {
    MAX_ERRNO = 4095,
    PATIENCE_NS = 250000000, /* without a completion, before the alarm is raised */
};

struct ring_slot {
    bool busy;
    uint64_t call; /* 0: nobody waits for it */
    size_t op;
    uint64_t bytes, userdata;
    atomic_uint_fast64_t direct; /* the address of an I/O without staging */
    atomic_uint_fast64_t inode, offset; /* of an I/O that nobody waits for; else 0 */
};

/* --- life ----------------------------------------------------------------------------------- */

size_t ring_bytes(uint32_t entries)
{
    size_t cell_bytes = sizeof(struct io_arguments) + sizeof(struct completion) +
                        sizeof(struct submission);
    return HEADER_BYTES + sizeof(sem_t) + cell_bytes * (entries + 1ul) + SPARE_BYTES;
}

struct ring *ring_new(const struct ring_setup *setup)
{
    struct ring *ring = calloc(1, sizeof *ring);
    if (!ring)
        return NULL;
    ring->setup = *setup;
    ring->cells = setup->entries + 1;
    ring->next_userdata = 1;
    atomic_flag_clear(&ring->in_use);
    ring->slots = calloc(setup->entries, sizeof *ring->slots);
    ring->free_slots = calloc(setup->entries, sizeof *ring->free_slots);
    if (!ring->slots || !ring->free_slots) {
        ring_free(ring);
        return NULL;
    }
    while (ring->free_count < setup->entries) {
        ring->free_slots[ring->free_count] = setup->entries - 1 - ring->free_count;
        ring->free_count++;
    }
    return ring;
}

void ring_free(struct ring *ring)
{
    free(ring->slots);
    free(ring->free_slots);
    free(ring);
}

bool ring_enter(struct ring *ring)
{
    return !atomic_flag_test_and_set_explicit(&ring->in_use, memory_order_acquire);
}

void ring_leave(struct ring *ring)
{
    atomic_flag_clear_explicit(&ring->in_use, memory_order_release);
}

void ring_stop(struct ring *ring)
{
    atomic_store(&ring->state, RING_STOPPED);
    sem_post(completed_of(ring));
}

static void mark_broken(struct ring *ring)
{
    int works = RING_WORKS;
    atomic_fetch_add(&ring->counts.impossible, 1);
    atomic_compare_exchange_strong(&ring->state, &works, RING_BROKEN);
}

/* --- submitting ----------------------------------------------------------------------------- */

/* False where the caller of `prepare` leaves the operation out. */
static bool submit(struct ring *ring, struct ring_call *call, size_t number)
{
    const struct ring_op *op = &call->ops[number];
    uint32_t index = ring->free_slots[ring->free_count - 1];
    struct ring_slot *slot = &ring->slots[index];
    if (!call->prepare(call, number, block_of(ring, index)))
        return false;
    ring->free_count--;
    slot->busy = true;
    slot->call = ring->call;
    slot->op = number;
    slot->bytes = op->bytes;
    slot->userdata = ring->next_userdata++;
    atomic_store_explicit(&slot->direct, op->memory ? op->address : 0, memory_order_relaxed);
    const struct iov_memory *memory = op->memory ? op->memory : &ring->setup.staging;
    struct io_arguments arguments = {
        .buffer_offset = op->memory ? op->address - memory->address
                                    : ring->setup.staging_start + index * ring->setup.block_bytes,
        .inode = op->inode,
        .offset = op->offset,
        .bytes = op->bytes,
        .userdata = slot->userdata,
    };
    memcpy(arguments.buffer, memory->uuid, UUID_BYTES);
    *arguments_of(ring, index) = arguments;
    *submission_at(ring, ring->sqe_head) =
        (struct submission){.index = (int32_t)index, .userdata = slot->userdata};
    ring->sqe_head = (ring->sqe_head + 1) % ring->cells;
    return true;
}

/* A queue may be full while slots are free: the daemon frees its cells in order. */
static bool has_room(struct ring *ring)
{
    uint32_t tail = (uint32_t)__atomic_load_n(&header_of(ring)->sqe_tail, __ATOMIC_ACQUIRE);
    if (tail >= ring->cells)
        mark_broken(ring);
    return ring->free_count && (ring->sqe_head + 1) % ring->cells != tail;
}

/* Up to a burst of operations, as many as there are slots. Returns how many were taken. */
static size_t submit_burst(struct ring *ring, struct ring_call *call, size_t next)
{
    size_t taken = 0, submitted = 0;
    while (next + taken < call->count && submitted < ring->setup.burst && has_room(ring)) {
        if (submit(ring, call, next + taken))
            submitted++;
        else
            call->left--;
        taken++;
    }
    if (submitted) {
        __atomic_store_n(&header_of(ring)->sqe_head, (int32_t)ring->sqe_head, __ATOMIC_RELEASE);
        sem_post(ring->setup.submitted);
        atomic_fetch_add(&ring->counts.submitted, submitted);
        atomic_fetch_add(&ring->counts.posts, 1);
    }
    return taken;
}

/* --- completions ---------------------------------------------------------------------------- */

static void accept(struct ring *ring, struct ring_call *call, const struct completion *completion)
{
    uint32_t index = (uint32_t)completion->index;
    struct ring_slot *slot = index < ring->setup.entries ? &ring->slots[index] : NULL;
    if (!slot || !slot->busy || slot->userdata != completion->userdata) {
        mark_broken(ring);
        return;
    }
    int64_t result = completion->result;
    if (result < -MAX_ERRNO || result > (int64_t)slot->bytes) {
        atomic_fetch_add(&ring->counts.impossible, 1);
        result = -EIO;
    }
    slot->busy = false;
    atomic_store_explicit(&slot->direct, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->inode, 0, memory_order_relaxed);
    if (call && slot->call == ring->call) {
        call->left--;
        call->done(call, slot->op, block_of(ring, index), result);
    } else {
        atomic_fetch_add(&ring->counts.late, 1);
        atomic_fetch_sub(&ring->quarantined, 1);
    }
    ring->free_slots[ring->free_count++] = index; /* the block was read */
}

/* Returns how many completions there were. */
static size_t reap(struct ring *ring, struct ring_call *call)
{
    struct ring_header *header = header_of(ring);
    size_t n = 0;
    uint32_t head = (uint32_t)__atomic_load_n(&header->cqe_head, __ATOMIC_ACQUIRE);
    if (head >= ring->cells) {
        mark_broken(ring);
        return 0;
    }
    for (; ring->cqe_tail != head && atomic_load(&ring->state) != RING_BROKEN; n++) {
        struct completion completion; /* a copy: the other side may change its own */
        memcpy(&completion, completion_at(ring, ring->cqe_tail), sizeof completion);
        ring->cqe_tail = (ring->cqe_tail + 1) % ring->cells;
        __atomic_store_n(&header->cqe_tail, (int32_t)ring->cqe_tail, __ATOMIC_RELEASE);
        accept(ring, call, &completion);
    }
    return n;
}

void ring_reap_late(struct ring *ring)
{
    if (!ring_enter(ring))
        return; /* the call in flight takes them */
    reap(ring, NULL);
    ring_leave(ring);
}

static int wait_until(sem_t *semaphore, int64_t at_ns)
{
#ifdef HAVE_CLOCKWAIT
    struct timespec at = {at_ns / 1000000000, at_ns % 1000000000};
    return sem_clockwait(semaphore, CLOCK_MONOTONIC, &at);
#else
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    int64_t ns = wall.tv_nsec + (at_ns - now_ns());
    struct timespec at = {wall.tv_sec + ns / 1000000000, ns % 1000000000};
    return at.tv_nsec < 0 ? (errno = ETIMEDOUT, -1) : sem_timedwait(semaphore, &at);
#endif
}

/* One job has ended, or some time has passed. */
static void await(struct ring *ring, int64_t deadline_ns)
{
    int64_t until = now_ns() + PATIENCE_NS;
    if (until > deadline_ns)
        until = deadline_ns;
    atomic_fetch_add(&ring->counts.waits, 1);
    if (wait_until(completed_of(ring), until) == 0 || errno == EINTR)
        return;
    if (errno != ETIMEDOUT) {
        mark_broken(ring); /* EINVAL: somebody wrote over the semaphore */
    } else if (ring->setup.alarm_fd >= 0) {
        uint64_t one = 1;
        ssize_t written = write(ring->setup.alarm_fd, &one, sizeof one);
        (void)written; /* full: then the alarm is raised already */
    }
}

static int why_not(const struct ring *ring, int64_t deadline_ns)
{
    switch (atomic_load(&ring->state)) {
    case RING_BROKEN:
        return EPROTO;
    case RING_STOPPED:
        return ENOTCONN;
    default:
        return now_ns() < deadline_ns ? 0 : ETIMEDOUT;
    }
}

/* The rest of the call is not waited for. */
static void give_up(struct ring *ring, struct ring_call *call, size_t next, int number)
{
    for (uint32_t i = 0; i < ring->setup.entries; i++) {
        struct ring_slot *slot = &ring->slots[i];
        if (slot->busy && slot->call == ring->call) {
            slot->call = 0;
            atomic_store_explicit(&slot->offset, call->ops[slot->op].offset, memory_order_relaxed);
            atomic_store_explicit(&slot->inode, call->ops[slot->op].inode, memory_order_release);
            atomic_fetch_add(&ring->quarantined, 1);
            atomic_fetch_add(&ring->counts.timed_out, 1);
            call->done(call, slot->op, NULL, -number);
        }
    }
    for (; next < call->count; next++)
        call->done(call, next, NULL, -number);
    call->left = 0;
}

void ring_run(struct ring *ring, struct ring_call *call)
{
    size_t next = 0;
    ring->call++;
    call->left = call->count;
    for (;;) {
        size_t reaped = reap(ring, call);
        if (!call->left)
            return;
        int number = why_not(ring, call->deadline_ns);
        if (number) {
            give_up(ring, call, next, number);
            return;
        }
        size_t taken = submit_burst(ring, call, next);
        next += taken;
        if (!taken && !reaped && call->left)
            await(ring, call->deadline_ns);
    }
}

size_t ring_in_doubt(struct ring *ring, struct ring_place *places)
{
    size_t n = 0;
    ring_reap_late(ring);
    for (uint32_t i = 0; i < ring->setup.entries; i++) {
        struct ring_slot *slot = &ring->slots[i];
        uint64_t inode = atomic_load_explicit(&slot->inode, memory_order_acquire);
        if (inode)
            places[n++] = (struct ring_place){inode, atomic_load(&slot->offset)};
    }
    return n;
}

bool ring_may_touch(struct ring *ring, uint64_t address, uint64_t bytes)
{
    ring_reap_late(ring);
    for (uint32_t i = 0; i < ring->setup.entries; i++) {
        uint64_t start = atomic_load_explicit(&ring->slots[i].direct, memory_order_relaxed);
        if (start && start < address + bytes && address < start + ring->slots[i].bytes)
            return true;
    }
    return false;
}
