/* Rings: watchers woken by a post, and the jobs that they form from what is queued. */
#include "rings.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sem_t *submitted[PRIORITIES];
static char semaphore_paths[PRIORITIES][80];

static int ring_entries(size_t bytes)
{
    return bytes < FRAME_BYTES ? 0 : (int)((bytes - FRAME_BYTES) / SLOT_BYTES) - 1;
}

struct ring *ring_create(char *base, size_t bytes, const struct ring_attributes *attributes)
{
    int entries = ring_entries(bytes);
    if (entries < 1 || attributes->depth > entries)
        return NULL;
    struct ring *ring = calloc(1, sizeof *ring);
    ring->is = *attributes;
    ring->slots = entries + 1;
    ring->marks = (void *)base;
    ring->args = (void *)(ring->marks + MARKS);
    ring->cqes = (void *)(ring->args + ring->slots);
    ring->sqes = (void *)(ring->cqes + ring->slots);
    ring->completed = (void *)(ring->sqes + ring->slots);
    pthread_mutex_init(&ring->lock, NULL);
    sem_init(ring->completed, 1, 0);
    return ring;
}

void ring_destroy(struct ring *ring)
{
    pthread_mutex_destroy(&ring->lock);
    free(ring);
}

void ring_print_layout(void)
{
    static const int entries[] = {1, 8, 1024};
    printf("{\"args\": [%zu, %zu, %zu, %zu, %zu, %zu, %zu], ", sizeof(struct args),
           offsetof(struct args, iov_id), offsetof(struct args, iov_offset),
           offsetof(struct args, inode), offsetof(struct args, file_offset),
           offsetof(struct args, bytes), offsetof(struct args, userdata));
    printf("\"cqe\": [%zu, %zu, %zu, %zu], ", sizeof(struct cqe), offsetof(struct cqe, index),
           offsetof(struct cqe, result), offsetof(struct cqe, userdata));
    printf("\"sqe\": [%zu, %zu, %zu], \"rings\": {", sizeof(struct sqe),
           offsetof(struct sqe, index), offsetof(struct sqe, userdata));
    for (int i = 0; i < 3; i++) {
        size_t bytes = FRAME_BYTES + SLOT_BYTES * (size_t)(entries[i] + 1);
        char *base = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        struct ring *ring = ring_create(base, bytes, &(struct ring_attributes){.depth = 0});
        printf("%s\"%d\": [%zu, %td, %td, %td, %td, %td, %td, %td, %td]", i ? ", " : "",
               ring->slots - 1, bytes, (char *)&ring->marks[SQE_HEAD] - base,
               (char *)&ring->marks[SQE_TAIL] - base, (char *)&ring->marks[CQE_HEAD] - base,
               (char *)&ring->marks[CQE_TAIL] - base, (char *)ring->args - base,
               (char *)ring->cqes - base, (char *)ring->sqes - base,
               (char *)ring->completed - base);
        ring_destroy(ring);
        free(base);
    }
    printf("}}\n");
}

/* How many of the queued I/Os make a job now. */
static int next_batch(struct ring *ring)
{
    int slots = ring->slots, depth = ring->is.depth;
    int queued = (ring->marks[SQE_HEAD] - ring->taken + slots) % slots;
    int unreaped = (ring->marks[CQE_HEAD] - ring->marks[CQE_TAIL] + slots) % slots;
    if (queued + ring->running + unreaped >= slots)
        die("more I/Os in flight than the ring has entries: %d queued, %d running, %d unreaped "
            "of %d", queued, ring->running, unreaped, slots - 1);
    if (!queued || depth == 0)
        return queued;
    if (depth > 0)
        return queued < depth ? 0 : depth;
    if (queued < -depth && ring->is.timeout_ns) {
        int64_t now = now_ns();
        if (!ring->first_seen_ns)
            ring->first_seen_ns = now;
        if (now - ring->first_seen_ns < ring->is.timeout_ns || now == ring->first_seen_ns)
            return 0;
    }
    ring->first_seen_ns = 0;
    return queued < -depth ? queued : -depth;
}

int ring_form_jobs(struct iov *owner, int most)
{
    struct ring *ring = owner->ring;
    int formed = 0;
    pthread_mutex_lock(&ring->lock);
    for (int batch; formed < most && (batch = next_batch(ring)); formed++) {
        struct job *job = calloc(1, sizeof *job);
        job->owner = iov_keep(owner);
        job->first = ring->taken;
        job->count = batch;
        ring->taken = (ring->taken + batch) % ring->slots;
        ring->running += batch;
        if (ring->newest)
            ring->newest->next_of_ring = job;
        else
            ring->oldest = job;
        ring->newest = job;
        job_enqueue(job);
    }
    pthread_mutex_unlock(&ring->lock);
    return formed;
}

/* Woken by a post alone, a watcher looks at every ring of its priority until none gives a job. */
static void *watch_thread(void *argument)
{
    int priority = (int)(intptr_t)argument;
    for (;;) {
        if (sem_wait(submitted[priority]))
            continue;
        count(SCANS, 1);
        for (int formed = 1; formed;) {
            formed = 0;
            for (int slot = 0; slot < iov_slots(); slot++) {
                struct iov *iov = iov_at(slot);
                if (!iov)
                    continue;
                if (iov->ring && iov->ring->is.priority == priority)
                    formed += ring_form_jobs(iov, JOBS_A_SCAN);
                iov_release(iov);
            }
        }
    }
    return NULL;
}

const char *semaphore_path(int priority)
{
    return semaphore_paths[priority];
}

static void create_semaphore(int priority)
{
    char id[37] = {0}, name[64];
    int fd = open("/proc/sys/kernel/random/uuid", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, id, 36) != 36)
        die("no random uuid: %s", strerror(errno));
    close(fd);
    snprintf(name, sizeof name, "/hf3fs-submit-ios.%s", id);
    snprintf(semaphore_paths[priority], sizeof *semaphore_paths, "/dev/shm/sem.%s", name + 1);
    submitted[priority] = sem_open(name, O_CREAT | O_EXCL, 0666, 0);
    if (submitted[priority] == SEM_FAILED)
        die("%s: %s", semaphore_paths[priority], strerror(errno));
}

void rings_begin(void)
{
    pthread_t thread;
    for (int i = 0; i < PRIORITIES; i++)
        create_semaphore(i);
    for (int i = 0; i < PRIORITIES; i++)
        pthread_create(&thread, NULL, watch_thread, (void *)(intptr_t)i);
}

void rings_end(void)
{
    for (int i = 0; i < PRIORITIES; i++)
        unlink(semaphore_paths[i]);
}
