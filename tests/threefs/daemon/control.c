/* Faults and counters, over a Unix socket: one line a command, one line of JSON the answer.
 *
 *   set NAME VALUE    a fault, by the name that `get` shows
 *   get               all faults
 *   reset             all faults off
 *   counters          what was served since the start
 *   semaphores        the paths of the submit semaphores
 */
#include "daemon.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MOST_BATCH = 4096 };

static const char *const fault_names[FAULTS] = {
    [DELAY_MS] = "delay_ms", [JITTER_MS] = "jitter_ms", [REORDER_MS] = "reorder_ms",
    [LATE_SHARE] = "late_share", [LATE_MS] = "late_ms", [HANG_SHARE] = "hang_share",
    [FAIL_SHARE] = "fail_share", [FAIL_ERRNO] = "fail_errno", [SHORT_SHARE] = "short_share",
    [HOLE_SHARE] = "hole_share", [ZERO_SHARE] = "zero_share", [CORRUPT_SHARE] = "corrupt_share",
    [ONLY] = "only", [NO_SPACE] = "no_space", [READ_ONLY] = "read_only",
    [UNPINNED] = "unpinned", [REFUSE_ERRNO] = "refuse_errno", [STRICT_DEPTH] = "strict_depth",
    [FUSE_DELAY_MS] = "fuse_delay_ms", [FUSE_FAIL_SHARE] = "fuse_fail_share",
    [FUSE_HANG] = "fuse_hang", [SEED] = "seed",
};
static const char *const counter_names[COUNTERS] = {
    [READS] = "reads", [WRITES] = "writes", [READ_BYTES] = "read_bytes",
    [WRITTEN_BYTES] = "written_bytes", [JOBS] = "jobs", [FAILED] = "failed",
    [SHORTENED] = "shortened", [HOLES] = "holes", [CORRUPTED] = "corrupted",
    [FUSE_READS] = "fuse_reads", [FUSE_WRITES] = "fuse_writes",
    [FUSE_READ_BYTES] = "fuse_read_bytes", [FUSE_WRITTEN_BYTES] = "fuse_written_bytes",
    [REGISTERED] = "registered", [DROPPED] = "dropped", [SCANS] = "scans",
};
static const char *const call_names[OPCODES] = {
    [FUSE_LOOKUP] = "lookup", [FUSE_GETATTR] = "getattr", [FUSE_SETATTR] = "setattr",
    [FUSE_OPEN] = "open", [FUSE_CREATE] = "create", [FUSE_RELEASE] = "release",
    [FUSE_READ] = "read", [FUSE_WRITE] = "write", [FUSE_FSYNC] = "fsync",
    [FUSE_OPENDIR] = "opendir", [FUSE_READDIR] = "readdir", [FUSE_UNLINK] = "unlink",
    [FUSE_RENAME] = "rename", [FUSE_RENAME2] = "rename2", [FUSE_MKDIR] = "mkdir",
    [FUSE_RMDIR] = "rmdir", [FUSE_SYMLINK] = "symlink", [FUSE_READLINK] = "readlink",
    [FUSE_STATFS] = "statfs", [FUSE_IOCTL] = "ioctl", [FUSE_FALLOCATE] = "fallocate",
};

static _Atomic double faults[FAULTS];
static _Atomic int64_t counters[COUNTERS], batches[MOST_BATCH + 1], calls[OPCODES];
static _Atomic uint64_t random_state;

double fault(enum fault which)
{
    return atomic_load(&faults[which]);
}

int refuse_change(void)
{
    return fault(READ_ONLY) ? EROFS : 0;
}

double chance(void)
{
    uint64_t x = atomic_fetch_add(&random_state, 0x9e3779b97f4a7c15) + 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return (double)((x ^ x >> 31) >> 11) / (double)(1ull << 53);
}

bool strikes(enum fault share)
{
    double part = fault(share);
    return part > 0 && chance() < part;
}

bool fault_is_for(bool reads)
{
    int only = (int)fault(ONLY);
    return !only || only == (reads ? 1 : 2);
}

static void sleep_ms(double ms)
{
    struct timespec left = {(time_t)(ms / 1000), (long)((int64_t)(ms * 1e6) % 1000000000)};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

int fuse_fault(bool reads)
{
    if (!reads && refuse_change())
        return EROFS;
    if (!reads && fault(NO_SPACE))
        return ENOSPC;
    if (!fault_is_for(reads))
        return 0;
    while (fault(FUSE_HANG))
        sleep_ms(1);
    if (fault(FUSE_DELAY_MS) > 0)
        sleep_ms(fault(FUSE_DELAY_MS));
    return strikes(FUSE_FAIL_SHARE) ? (int)fault(FAIL_ERRNO) : 0;
}

void count(enum counter which, int64_t by)
{
    atomic_fetch_add(&counters[which], by);
}

void count_batch(int ios)
{
    atomic_fetch_add(&batches[ios < MOST_BATCH ? ios : MOST_BATCH], 1);
}

void count_call(uint32_t opcode)
{
    if (opcode < OPCODES)
        atomic_fetch_add(&calls[opcode], 1);
}

static void reset(void)
{
    for (int i = 0; i < FAULTS; i++)
        atomic_store(&faults[i], i == FAIL_ERRNO ? EREMOTEIO : 0);
    jobs_release_held();
}

static bool set(const char *name, double value)
{
    for (int i = 0; i < FAULTS; i++) {
        if (strcmp(name, fault_names[i]))
            continue;
        atomic_store(&faults[i], value);
        if (i == SEED)
            atomic_store(&random_state, (uint64_t)value);
        if (i == HANG_SHARE && value == 0)
            jobs_release_held();
        return true;
    }
    return false;
}

static void print_counters(FILE *out)
{
    fprintf(out, "{\"held\": %d", jobs_held());
    for (int i = 0; i < COUNTERS; i++)
        fprintf(out, ", \"%s\": %lld", counter_names[i], (long long)counters[i]);
    const char *comma = "";
    fprintf(out, ", \"batches\": {");
    for (int i = 0; i <= MOST_BATCH; i++)
        if (batches[i]) {
            fprintf(out, "%s\"%d\": %lld", comma, i, (long long)batches[i]);
            comma = ", ";
        }
    comma = "";
    fprintf(out, "}, \"calls\": {");
    for (int i = 0; i < OPCODES; i++)
        if (call_names[i]) {
            fprintf(out, "%s\"%s\": %lld", comma, call_names[i], (long long)calls[i]);
            comma = ", ";
        }
    fprintf(out, "}}\n");
}

static void print_faults(FILE *out)
{
    for (int i = 0; i < FAULTS; i++)
        fprintf(out, "%s\"%s\": %.17g", i ? ", " : "{", fault_names[i], fault((enum fault)i));
    fprintf(out, "}\n");
}

static void obey(const char *line, FILE *out)
{
    char name[64];
    double value;
    if (sscanf(line, "set %63s %lf", name, &value) == 2 && set(name, value)) {
        fprintf(out, "{}\n");
    } else if (!strcmp(line, "get\n")) {
        print_faults(out);
    } else if (!strcmp(line, "reset\n")) {
        reset();
        fprintf(out, "{}\n");
    } else if (!strcmp(line, "counters\n")) {
        print_counters(out);
    } else if (!strcmp(line, "semaphores\n")) {
        fprintf(out, "[\"%s\", \"%s\", \"%s\"]\n", semaphore_path(0), semaphore_path(1),
                semaphore_path(2));
    } else {
        fprintf(out, "{\"error\": \"unknown command\"}\n");
    }
}

static void *listen_thread(void *socket_fd)
{
    for (;;) {
        int fd = accept4((int)(intptr_t)socket_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
        char line[256];
        while (fgets(line, sizeof line, in)) {
            obey(line, out);
            fflush(out);
        }
        fclose(out);
        fclose(in);
    }
    return NULL;
}

void control_begin(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(options.control) >= sizeof address.sun_path)
        die("the path of the control socket is too long");
    strcpy(address.sun_path, options.control);
    unlink(options.control);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (void *)&address, sizeof address) || listen(fd, 8))
        die("%s: %s", options.control, strerror(errno));
    reset();
    atomic_store(&random_state, 1);
    pthread_t thread;
    pthread_create(&thread, NULL, listen_thread, (void *)(intptr_t)fd);
}
