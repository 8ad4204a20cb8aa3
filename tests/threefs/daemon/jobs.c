/* Jobs: run when they are due, completed in shared memory. */
#include "rings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NEVER INT64_MAX

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_changed;
static struct job *queue; /* by due time */

static int64_t due_of(bool reads)
{
    int64_t now = now_ns();
    if (!fault_is_for(reads))
        return now;
    if (strikes(HANG_SHARE))
        return NEVER;
    double ms = fault(DELAY_MS) + fault(JITTER_MS) * chance();
    if (strikes(LATE_SHARE))
        ms += fault(LATE_MS);
    int64_t window = (int64_t)(fault(REORDER_MS) * 1e6);
    if (window > 0) /* mirrored at the end of the window: the last of it becomes the first */
        ms += 2e-6 * (double)(window - now % window);
    return now + (int64_t)(ms * 1e6);
}

static void insert(struct job *job)
{
    struct job **at = &queue;
    while (*at && (*at)->due_ns <= job->due_ns)
        at = &(*at)->next;
    job->next = *at;
    *at = job;
    pthread_cond_signal(&queue_changed);
}

void job_enqueue(struct job *job)
{
    job->due_ns = due_of(job->owner->ring->is.reads);
    pthread_mutex_lock(&queue_lock);
    insert(job);
    pthread_mutex_unlock(&queue_lock);
}

/* The submission queue's tail follows the jobs in their order, not in that of their ends. */
static void retire(struct ring *ring, struct job *done)
{
    done->is_done = true;
    while (ring->oldest && ring->oldest->is_done) {
        struct job *job = ring->oldest;
        atomic_store(&ring->marks[SQE_TAIL], (job->first + job->count) % ring->slots);
        ring->oldest = job->next_of_ring;
        if (!ring->oldest)
            ring->newest = NULL;
        free(job);
    }
}

struct io {
    struct args args;
    int32_t index;
    uint64_t userdata;
    struct node *node;
    struct iov *iov;
    char *data;
    int64_t result;
};

/* Find what the I/O names; its error, or 0. */
static int resolve(struct io *io, bool reads)
{
    const struct args *args = &io->args;
    io->node = node_pin(args->inode, !reads);
    if (!io->node)
        return EBADF;
    io->iov = iov_by_id(args->iov_id);
    if (!io->iov || io->iov->ring || args->iov_offset > io->iov->bytes ||
        args->bytes > io->iov->bytes - args->iov_offset)
        return EINVAL;
    if (fault(UNPINNED))
        return EACCES;
    size_t block = io->iov->block_bytes;
    if (args->bytes && args->iov_offset / block != (args->iov_offset + args->bytes - 1) / block)
        return EINVAL;
    io->data = io->iov->base + args->iov_offset;
    return 0;
}

static int by_address(const void *a, const void *b)
{
    const struct io *const *x = a, *const *y = b;
    return ((*x)->data > (*y)->data) - ((*x)->data < (*y)->data);
}

/* Reads whose buffers overlap fail all of their job. */
static void refuse_overlaps(struct io *ios, int n)
{
    struct io **sorted = malloc((size_t)n * sizeof *sorted);
    int good = 0;
    bool overlap = false;
    for (int i = 0; i < n; i++)
        if (!ios[i].result)
            sorted[good++] = &ios[i];
    qsort(sorted, (size_t)good, sizeof *sorted, by_address);
    for (int i = 1; i < good; i++)
        overlap |= sorted[i - 1]->data + sorted[i - 1]->args.bytes > sorted[i]->data;
    for (int i = 0; overlap && i < good; i++)
        sorted[i]->result = -EINVAL;
    free(sorted);
}

static int64_t read_io(struct io *io, size_t bytes, bool may_fault, bool holes_fail)
{
    if (may_fault && strikes(HOLE_SHARE)) {
        count(HOLES, 1);
        return 0;
    }
    if (may_fault && strikes(ZERO_SHARE)) {
        count(HOLES, 1);
        if (holes_fail)
            return -ENODATA;
        memset(io->data, 0, bytes);
        return (int64_t)bytes;
    }
    int64_t moved = chunks_read(io->node->io_fd, io->node->id, io->data, bytes,
                                io->args.file_offset, holes_fail);
    if (moved > 0 && may_fault && strikes(CORRUPT_SHARE)) {
        io->data[(size_t)(chance() * (double)moved)] ^= 0x40;
        count(CORRUPTED, 1);
    }
    return moved;
}

static int64_t run_io(struct io *io, const struct ring_attributes *ring)
{
    bool may_fault = fault_is_for(ring->reads);
    size_t bytes = io->args.bytes;
    if (!ring->reads && fault(READ_ONLY))
        return -EROFS;
    if (!ring->reads && fault(NO_SPACE))
        return -ENOSPC;
    if (may_fault && strikes(FAIL_SHARE))
        return -(int64_t)fault(FAIL_ERRNO);
    if (may_fault && bytes && strikes(SHORT_SHARE)) {
        bytes = (size_t)(chance() * (double)bytes);
        count(SHORTENED, 1);
    }
    int64_t moved = ring->reads ? read_io(io, bytes, may_fault, ring->flags & HOLES_FAIL)
                                : chunks_write(io->node->io_fd, io->node->id, io->data, bytes,
                                               io->args.file_offset);
    if (moved == -EFAULT) /* /dev/shm is full, where 3FS fails to register the memory */
        return -EACCES;
    if (moved > 0)
        count(ring->reads ? READ_BYTES : WRITTEN_BYTES, moved);
    return moved;
}

static void run_ios(struct ring *ring, struct job *job, struct io *ios)
{
    for (int i = 0; i < job->count; i++) {
        const struct sqe *sqe = &ring->sqes[(job->first + i) % ring->slots];
        if (sqe->index < 0 || sqe->index >= ring->slots)
            die("a submitted I/O has the slot %d of %d", sqe->index, ring->slots);
        ios[i] = (struct io){.args = ring->args[sqe->index], .index = sqe->index,
                             .userdata = sqe->userdata};
        ios[i].result = -resolve(&ios[i], ring->is.reads);
    }
    if (ring->is.reads)
        refuse_overlaps(ios, job->count);
    for (int i = 0; i < job->count; i++) {
        if (!ios[i].result)
            ios[i].result = run_io(&ios[i], &ring->is);
        if (ios[i].result < 0)
            count(FAILED, 1);
        if (ios[i].iov)
            iov_release(ios[i].iov);
        if (ios[i].node)
            node_unpin(ios[i].node);
    }
}

static void run_job(struct job *job)
{
    struct iov *owner = job->owner;
    struct ring *ring = owner->ring;
    int ios_of_job = job->count;
    struct io *ios = malloc((size_t)ios_of_job * sizeof *ios);
    run_ios(ring, job, ios);
    pthread_mutex_lock(&ring->lock);
    retire(ring, job);
    int head = ring->marks[CQE_HEAD];
    for (int i = 0; i < ios_of_job; i++) {
        ring->cqes[head] = (struct cqe){ios[i].index, 0, ios[i].result, ios[i].userdata};
        head = (head + 1) % ring->slots;
    }
    ring->running -= ios_of_job;
    count(ring->is.reads ? READS : WRITES, ios_of_job);
    count(JOBS, 1);
    count_batch(ios_of_job);
    atomic_store(&ring->marks[CQE_HEAD], head);
    pthread_mutex_unlock(&ring->lock);
    sem_post(ring->completed);
    free(ios);
    ring_form_jobs(owner, 1); /* a worker looks once more at the ring that it comes from */
    iov_release(owner);
}

static struct job *take(void)
{
    pthread_mutex_lock(&queue_lock);
    while (!queue || queue->due_ns > now_ns()) {
        if (!queue || queue->due_ns == NEVER) {
            pthread_cond_wait(&queue_changed, &queue_lock);
        } else {
            struct timespec due = {queue->due_ns / 1000000000, queue->due_ns % 1000000000};
            pthread_cond_timedwait(&queue_changed, &queue_lock, &due);
        }
    }
    struct job *job = queue;
    queue = job->next;
    if (queue)
        pthread_cond_signal(&queue_changed);
    pthread_mutex_unlock(&queue_lock);
    return job;
}

static void *work_thread(void *unused)
{
    for (;;)
        run_job(take());
    return unused;
}

void jobs_release_held(void)
{
    pthread_mutex_lock(&queue_lock);
    struct job **at = &queue;
    while (*at && (*at)->due_ns < NEVER)
        at = &(*at)->next;
    struct job *held = *at;
    *at = NULL;
    while (held) {
        struct job *job = held;
        held = job->next;
        job->due_ns = now_ns();
        insert(job);
    }
    pthread_mutex_unlock(&queue_lock);
}

int jobs_held(void)
{
    int held = 0;
    pthread_mutex_lock(&queue_lock);
    for (struct job *job = queue; job; job = job->next)
        held += job->due_ns == NEVER ? job->count : 0;
    pthread_mutex_unlock(&queue_lock);
    return held;
}

void jobs_begin(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&queue_changed, &attributes);
    pthread_t thread;
    for (int i = 0; i < options.workers; i++)
        pthread_create(&thread, NULL, work_thread, NULL);
}
