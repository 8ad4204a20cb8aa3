/* A ring in shared memory, and its jobs. */
#ifndef RINGS_H
#define RINGS_H

#include "daemon.h"

#include <pthread.h>
#include <semaphore.h>

/* What lies in shared memory: four marks, args, cqes and sqes of one slot more than there are
 * entries, the semaphore of completions, and a page to spare. */
struct args {
    uint8_t iov_id[ID_BYTES];
    uint64_t iov_offset, inode, file_offset, bytes, userdata;
};
struct cqe {
    int32_t index, reserved;
    int64_t result;
    uint64_t userdata;
};
struct sqe {
    int32_t index, padding;
    uint64_t userdata;
};
enum { SQE_HEAD, SQE_TAIL, CQE_HEAD, CQE_TAIL, MARKS, SPARE_BYTES = 4096, JOBS_A_SCAN = 32 };
enum { SLOT_BYTES = sizeof(struct args) + sizeof(struct cqe) + sizeof(struct sqe) };
enum { FRAME_BYTES = MARKS * sizeof(int32_t) + sizeof(sem_t) + SPARE_BYTES };

struct job {
    struct job *next; /* in the queue of workers */
    struct job *next_of_ring; /* in the order in which they were formed */
    struct iov *owner; /* keeps ring and memory */
    int first, count; /* of the submission queue */
    int64_t due_ns;
    bool is_done;
};

struct ring {
    struct ring_attributes is;
    int slots;
    _Atomic int32_t *marks;
    struct args *args;
    struct cqe *cqes;
    struct sqe *sqes;
    sem_t *completed;
    pthread_mutex_t lock; /* of all below, and of the daemon's marks */
    int taken; /* into jobs, up to here */
    int running; /* I/Os in jobs */
    int64_t first_seen_ns; /* when a part of a batch was first left lying */
    struct job *oldest, *newest;
};

/* jobs.c */
void job_enqueue(struct job *job);

/* rings.c: jobs from what is queued, at most so many; how many that were. */
int ring_form_jobs(struct iov *owner, int most);

#endif
