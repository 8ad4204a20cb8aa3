/* LD_PRELOAD: fails, delays, shortens, kills or logs chosen I/O calls. See shim.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 5 };
static const char *names[CALLS] = {"pread", "preadv", "preadv2", "pwrite", "pwritev"};
static unsigned counts[CALLS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Applies the rules to one call. Returns its errno, or 0; may lower *bytes; may not return. */
static int apply(int call, int fd, off_t offset, size_t *bytes, int *kill_after)
{
    pthread_mutex_lock(&lock);
    unsigned count = ++counts[call];
    pthread_mutex_unlock(&lock);
    const char *log = getenv("SHIM_LOG"), *rule = getenv("SHIM");
    if (log) {
        char line[128];
        int n = snprintf(line, sizeof line, "%s %d %lld %zu\n", names[call], fd,
                         (long long)offset, *bytes);
        int to = open(log, O_WRONLY | O_APPEND | O_CREAT, 0600);
        if (to < 0 || write(to, line, (size_t)n) != n)
            abort();
        close(to);
    }
    while (rule && *rule) {
        char name[16], action[16];
        unsigned nth;
        long value;
        if (sscanf(rule, "%15[^:]:%u:%15[^:]:%ld", name, &nth, action, &value) != 4)
            abort();
        if (!strcmp(name, names[call]) && (nth == 0 || nth == count)) {
            if (!strcmp(action, "fail"))
                return (int)value;
            if (!strcmp(action, "short") && *bytes > (size_t)value)
                *bytes = (size_t)value;
            if (!strcmp(action, "kill"))
                *kill_after = 1;
            if (!strcmp(action, "delay")) {
                struct timespec wait = {value / 1000, value % 1000 * 1000000};
                nanosleep(&wait, NULL);
            }
        }
        rule = strchr(rule, ',');
        rule = rule ? rule + 1 : NULL;
    }
    return 0;
}

static size_t total(const struct iovec *iov, int n)
{
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += iov[i].iov_len;
    return bytes;
}

static void *real(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* The first `bytes` of a vector; the last piece is cut. Returns the pieces left. */
static int cut(struct iovec *copy, const struct iovec *iov, int n, size_t bytes)
{
    int kept = 0;
    for (; kept < n && bytes; kept++) {
        copy[kept] = iov[kept];
        if (copy[kept].iov_len > bytes)
            copy[kept].iov_len = bytes;
        bytes -= copy[kept].iov_len;
    }
    return kept;
}

#define BEGIN(call, wanted)                                      \
    size_t bytes = (wanted);                                     \
    int kill_after = 0, error = apply(call, fd, offset, &bytes, &kill_after); \
    if (error) {                                                 \
        errno = error;                                           \
        return -1;                                               \
    }
#define END                                                      \
    if (kill_after)                                              \
        kill(getpid(), SIGKILL);                                 \
    return done;

#define SCALAR(name, call, pointer)                                               \
    ssize_t name(int fd, pointer buffer, size_t size, off_t offset)               \
    {                                                                             \
        ssize_t (*next)(int, pointer, size_t, off_t) = real(names[call]);         \
        BEGIN(call, size)                                                         \
        ssize_t done = next(fd, buffer, bytes, offset);                           \
        END                                                                       \
    }
/* Python's own os.preadv and os.pwritev arrive here too, with flags 0. */
#define VECTOR(name, real_name, call, call_with_flags)                                    \
    ssize_t name(int fd, const struct iovec *iov, int n, off_t offset, int flags)         \
    {                                                                                     \
        ssize_t (*next)(int, const struct iovec *, int, off_t, int) = real(real_name);    \
        struct iovec copy[1024];                                                          \
        BEGIN(flags ? call_with_flags : call, total(iov, n))                              \
        ssize_t done = next(fd, copy, cut(copy, iov, n, bytes), offset, flags);           \
        END                                                                               \
    }
#define WITHOUT_FLAGS(name, other)                                                        \
    ssize_t name(int fd, const struct iovec *iov, int n, off_t offset)                    \
    {                                                                                     \
        return other(fd, iov, n, offset, 0);                                              \
    }

SCALAR(pread, 0, void *)
SCALAR(pread64, 0, void *)
SCALAR(pwrite, 3, const void *)
SCALAR(pwrite64, 3, const void *)
VECTOR(preadv2, "preadv2", 1, 2)
VECTOR(preadv64v2, "preadv2", 1, 2)
VECTOR(pwritev2, "pwritev2", 4, 4)
VECTOR(pwritev64v2, "pwritev2", 4, 4)
WITHOUT_FLAGS(preadv, preadv2)
WITHOUT_FLAGS(preadv64, preadv2)
WITHOUT_FLAGS(pwritev, pwritev2)
WITHOUT_FLAGS(pwritev64, pwritev2)
