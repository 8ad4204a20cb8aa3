/* A 3FS client daemon to test against: a FUSE file system of type fuse.hf3fs over a backing
 * directory, and USRBIO rings in shared memory.
 *
 *   main.c     options, mount, threads, a clean end
 *   serve.c    the FUSE request loop
 *   files.c    ordinary files, passed through
 *   ioctls.c   the ioctls of 3FS
 *   nodes.c    the inodes that the kernel knows, by the inode number of the backing file
 *   virt.c     3fs-virt: submit semaphores, registration by symlink
 *   iovs.c     registered memory and the grammar of its keys
 *   rings.c    rings, and the jobs formed from what is queued there
 *   jobs.c     jobs run by workers and completed in shared memory
 *   chunks.c   file data with the semantics of 3FS chunks
 *   control.c  faults and counters, over a Unix socket
 */
#ifndef DAEMON_H
#define DAEMON_H

#define _GNU_SOURCE
#include <linux/fuse.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

enum { PRIORITIES = 3, ID_BYTES = 16, NO_REPLY = -1 };

struct options {
    const char *backing, *mount, *control, *cluster;
    uint32_t chunk_bytes;
    int attr_ms, entry_ms, absent_ms; /* what the kernel may cache, and how long */
    int workers;
};
extern struct options options;

int64_t now_ns(void);
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* serve.c */
enum { MOST_DATA_BYTES = 1 << 20 };
struct call {
    struct fuse_in_header head;
    const void *in; /* what follows the header */
    char *out; /* room for MOST_DATA_BYTES */
    size_t out_bytes;
};
typedef int handler(struct call *); /* 0, an errno, or NO_REPLY */
enum { OPCODES = 64 };
extern handler *const file_handlers[OPCODES], *const virt_handlers[OPCODES];
void serve(int fuse_fd);

int answer(struct call *call, const void *data, size_t bytes);
int answer_ioctl(struct call *call, const void *data, size_t bytes);
void fill_attr(struct fuse_attr *attr, const struct stat *found);
void set_ms(int ms, uint64_t *seconds, uint32_t *nanoseconds);
/* Add one entry to what READDIR answers; false if there is no room. */
bool add_dirent(struct call *call, size_t room, uint64_t ino, const char *name, uint32_t type,
                uint64_t next);

/* ioctls.c */
handler on_ioctl;

/* nodes.c */
struct node {
    uint64_t id; /* nodeid and inode number, but FUSE_ROOT_ID for the root */
    int path_fd; /* O_PATH */
    int io_fd; /* O_RDWR while opens + pins > 0 */
    uint64_t lookups;
    int opens, writers, pins;
    struct node *next;
};
void nodes_begin(void);
struct node *node_of(uint64_t id);
int node_look(struct node *parent, const char *name, struct node **node, struct stat *found);
void node_forget(uint64_t id, uint64_t lookups);
int node_open(struct node *node, bool writes);
void node_close(struct node *node, bool writes);
/* For one ring I/O: NULL unless a descriptor is open that allows it. */
struct node *node_pin(uint64_t id, bool writes);
void node_unpin(struct node *node);

/* virt.c */
#define VIRT_BIT (1ull << 63)
#define VIRT_NAME "3fs-virt"
enum { VIRT_ROOT = 1, VIRT_IOVS = 2, VIRT_SEMAPHORE = 16, VIRT_IOV = 4096 };
handler virt_enter; /* LOOKUP of 3fs-virt in the root */

/* iovs.c */
struct ring;
struct iov {
    uint64_t serial;
    char key[256], target[256];
    uint8_t id[ID_BYTES];
    uint32_t tid; /* of the thread that registered it */
    char *base;
    size_t bytes, block_bytes;
    struct ring *ring; /* NULL for data */
    int references;
};
enum { MOST_IOVS = 4096 };
int iov_register(const char *key, const char *target, uint32_t tid, uint64_t *serial);
int iov_unregister(const char *key);
void iov_unregister_all_of(uint32_t tid);
struct iov *iov_keep(struct iov *iov); /* these take a reference */
struct iov *iov_by_id(const uint8_t id[ID_BYTES]);
struct iov *iov_by_key(const char *key);
struct iov *iov_by_serial(uint64_t serial);
struct iov *iov_at(int slot);
int iov_slots(void); /* all that are in use are below */
void iov_release(struct iov *iov);

/* rings.c */
struct ring_attributes {
    bool reads;
    int depth, priority;
    int64_t timeout_ns;
    uint64_t flags;
};
struct ring *ring_create(char *base, size_t bytes, const struct ring_attributes *attributes);
void ring_destroy(struct ring *ring);
void rings_begin(void);
void rings_end(void);
const char *semaphore_path(int priority);
void ring_print_layout(void);

/* jobs.c */
void jobs_begin(void);
void jobs_release_held(void);
int jobs_held(void); /* I/Os */

/* chunks.c */
enum { HOLES_FAIL = 2 };
ssize_t chunks_read(int fd, uint64_t ino, char *data, size_t bytes, uint64_t at, bool holes_fail);
ssize_t chunks_write(int fd, uint64_t ino, const char *data, size_t bytes, uint64_t at);
int chunks_truncate(int fd, uint64_t ino, uint64_t bytes);
int chunks_punch(int fd, uint64_t ino, uint64_t from, uint64_t to);

/* control.c */
enum fault {
    DELAY_MS, /* of every job: its data moves and it completes so much later */
    JITTER_MS, /* up to so much more */
    REORDER_MS, /* jobs of one window of so many ms run last to first */
    LATE_SHARE, /* of the jobs are later by */
    LATE_MS,
    HANG_SHARE, /* of the jobs are held until this is 0 again */
    FAIL_SHARE, /* of the I/Os give */
    FAIL_ERRNO,
    SHORT_SHARE, /* of the I/Os move and report a part */
    HOLE_SHARE, /* of the reads find no chunk: result 0, nothing written */
    ZERO_SHARE, /* of the reads find a hole before data: zeros, or ENODATA */
    CORRUPT_SHARE, /* of the reads have one byte wrong */
    ONLY, /* 1: faults of I/Os and jobs act on reads, 2: on writes */
    NO_SPACE, /* writes give ENOSPC */
    READ_ONLY, /* changes give EROFS */
    UNPINNED, /* memory registration failed: every I/O gives EACCES */
    REFUSE_ERRNO, /* for every registration */
    STRICT_DEPTH, /* negative depths are EINVAL, as in later releases of 3FS */
    FUSE_DELAY_MS, /* of reads and writes through FUSE, of which a few run at a time */
    FUSE_FAIL_SHARE, /* of them give FAIL_ERRNO */
    FUSE_HANG, /* they wait until this is 0 again */
    SEED,
    FAULTS
};
enum counter {
    READS, WRITES, READ_BYTES, WRITTEN_BYTES, JOBS, FAILED, SHORTENED, HOLES, CORRUPTED,
    FUSE_READS, FUSE_WRITES, FUSE_READ_BYTES, FUSE_WRITTEN_BYTES, REGISTERED, DROPPED, SCANS,
    COUNTERS
};
double fault(enum fault which);
int refuse_change(void); /* EROFS if told so */
bool strikes(enum fault share); /* by chance */
double chance(void); /* in [0, 1) */
bool fault_is_for(bool reads);
int fuse_fault(bool reads); /* waits as told; an errno */
void count(enum counter which, int64_t by);
void count_batch(int ios);
void count_call(uint32_t opcode);
void control_begin(void);

#endif
