/* Faults on demand for the files below one directory, preloaded into a process under test.
 *
 * The environment names the directory (FAULTS_DIRECTORY) and a control file (FAULTS_CONTROL) that
 * holds one `struct control`, shared with the test, which changes it while the process runs.
 * Every intercepted call on a file of the directory is matched with each rule; a rule counts its
 * calls and acts on those from `first` to `last`. A call that must not wait (RWF_NOWAIT) fails
 * with EAGAIN where the rule would make it wait, as it does in the kernel, unless the file is open
 * with O_DIRECT: there RWF_NOWAIT waits for the device all the same.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { READ = 1, WRITE = 2, ALLOCATE = 4, OPEN = 8, NAME = 16 };
enum { OFF, COUNT, DELAY, BLOCK, FAIL, SHORT, KILL, KILL_TORN };
enum { RULES = 4, NAME_BYTES = 64, MOST_PIECES = 1024 };

struct rule {
    _Atomic int32_t action;
    int32_t kinds; /* of calls, a mask */
    int64_t first, last; /* calls acted on, counted from 1 */
    int64_t value; /* ms, errno, or bytes */
    char name[NAME_BYTES]; /* only paths that contain this */
    _Atomic int64_t seen; /* calls that matched */
    _Atomic int64_t acted;
    _Atomic int64_t waiting; /* blocked right now */
};

struct control {
    struct rule rules[RULES];
};

static struct control *control;
static char directory[PATH_MAX];
static __thread int never_waits; /* the call at hand has RWF_NOWAIT */

__attribute__((constructor)) static void begin(void)
{
    const char *where = getenv("FAULTS_DIRECTORY"), *file = getenv("FAULTS_CONTROL");
    if (!where || !file || !realpath(where, directory))
        return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *shared = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (shared != MAP_FAILED)
        control = shared;
}

static int is_below(const char *path)
{
    size_t n = strlen(directory);
    return n && !strncmp(path, directory, n) && (path[n] == '/' || !path[n]);
}

static void wait_ms(int64_t ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

/* What the call is to do: 0 go on; -1 fail with errno set; otherwise only so many bytes, and die
 * afterwards if *torn. */
static int64_t act(struct rule *rule, int64_t bytes, int *torn)
{
    int32_t action = atomic_load(&rule->action);
    int64_t half = bytes > 1 ? bytes / 2 : 0;
    switch (action) {
    case DELAY:
        wait_ms(rule->value);
        return 0;
    case BLOCK:
        atomic_fetch_add(&rule->waiting, 1);
        while (atomic_load(&rule->action) == BLOCK)
            wait_ms(1);
        atomic_fetch_sub(&rule->waiting, 1);
        return 0;
    case FAIL:
        errno = (int)rule->value;
        return -1;
    case SHORT:
        return rule->value ? (rule->value < bytes ? rule->value : 0) : half;
    case KILL_TORN:
        *torn = 1;
        if (half)
            return half;
        /* fall through */
    case KILL:
        syscall(SYS_kill, getpid(), SIGKILL);
    }
    return 0;
}

static int64_t consult(int kind, const char *path, int64_t bytes, int *torn)
{
    int64_t verdict = 0;
    for (int i = 0; i < RULES && !verdict; i++) {
        struct rule *rule = &control->rules[i];
        if (atomic_load(&rule->action) == OFF || !(rule->kinds & kind))
            continue;
        if (rule->name[0] && !strstr(path + strlen(directory), rule->name))
            continue;
        int64_t n = atomic_fetch_add(&rule->seen, 1) + 1;
        if (n < rule->first || n > rule->last)
            continue;
        int32_t action = atomic_load(&rule->action);
        if (never_waits && (action == DELAY || action == BLOCK)) {
            errno = EAGAIN;
            return -1;
        }
        atomic_fetch_add(&rule->acted, 1);
        verdict = act(rule, bytes, torn);
    }
    return verdict;
}

static int64_t on_fd(int kind, int fd, int64_t bytes, int *torn)
{
    if (!control)
        return 0;
    char link[64], path[PATH_MAX];
    int saved = errno, digits = 0;
    char *end = link + sizeof link - 1;
    *end = 0;
    do
        *--end = (char)('0' + fd % 10), digits++;
    while ((fd /= 10) > 0);
    end -= strlen("/proc/self/fd/");
    memcpy(end, "/proc/self/fd/", strlen("/proc/self/fd/"));
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, end, path, sizeof path - 1);
    errno = saved;
    if (n <= 0)
        return 0;
    path[n] = 0;
    return is_below(path) ? consult(kind, path, bytes, torn) : 0;
}

static int64_t on_path(int kind, int at, const char *path, int *torn)
{
    char full[PATH_MAX];
    if (!control || !path)
        return 0;
    if (path[0] != '/') { /* tests use absolute roots; what is opened relative to a fd follows it */
        if (at == AT_FDCWD)
            return 0;
        return on_fd(kind, at, 0, torn);
    }
    strncpy(full, path, sizeof full - 1);
    full[sizeof full - 1] = 0;
    return is_below(full) ? consult(kind, full, 0, torn) : 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void die_if(int torn)
{
    if (torn)
        syscall(SYS_kill, getpid(), SIGKILL);
}

#define PLAIN(name, kind, data, ...)                                                              \
    {                                                                                             \
        int torn = 0;                                                                             \
        int64_t verdict = on_fd(kind, fd, (int64_t)size, &torn);                                  \
        if (verdict < 0)                                                                          \
            return -1;                                                                            \
        ssize_t moved = REAL(name)(fd, data, verdict ? (size_t)verdict : size, ##__VA_ARGS__);    \
        die_if(torn);                                                                             \
        return moved;                                                                             \
    }

ssize_t read(int fd, void *data, size_t size) PLAIN(read, READ, data)
ssize_t write(int fd, const void *data, size_t size) PLAIN(write, WRITE, data)
ssize_t pread(int fd, void *data, size_t size, off_t at) PLAIN(pread, READ, data, at)
ssize_t pread64(int fd, void *data, size_t size, off64_t at) PLAIN(pread64, READ, data, at)
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) PLAIN(pwrite, WRITE, data, at)
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
    PLAIN(pwrite64, WRITE, data, at)

static int64_t total(const struct iovec *pieces, int count)
{
    int64_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += (int64_t)pieces[i].iov_len;
    return bytes;
}

/* The first `bytes` of `pieces`, in `cut`; how many pieces that is. */
static int clip(const struct iovec *pieces, int count, int64_t bytes, struct iovec *cut)
{
    int n = 0;
    for (; n < count && n < MOST_PIECES && bytes > 0; n++) {
        cut[n] = pieces[n];
        if ((int64_t)cut[n].iov_len > bytes)
            cut[n].iov_len = (size_t)bytes;
        bytes -= (int64_t)cut[n].iov_len;
    }
    return n;
}

#define VECTORED(name, kind, ...)                                                                 \
    {                                                                                             \
        struct iovec cut[MOST_PIECES];                                                            \
        int torn = 0;                                                                             \
        int64_t verdict = on_fd(kind, fd, total(pieces, count), &torn);                           \
        never_waits = 0;                                                                          \
        if (verdict < 0)                                                                          \
            return -1;                                                                            \
        if (verdict) {                                                                            \
            count = clip(pieces, count, verdict, cut);                                            \
            pieces = cut;                                                                         \
        }                                                                                         \
        ssize_t moved = REAL(name)(fd, pieces, count, ##__VA_ARGS__);                             \
        die_if(torn);                                                                             \
        return moved;                                                                             \
    }

#define ARGS int fd, const struct iovec *pieces, int count
ssize_t readv(ARGS) VECTORED(readv, READ)
ssize_t writev(ARGS) VECTORED(writev, WRITE)
ssize_t preadv(ARGS, off_t at) VECTORED(preadv, READ, at)
ssize_t preadv64(ARGS, off64_t at) VECTORED(preadv64, READ, at)
ssize_t pwritev(ARGS, off_t at) VECTORED(pwritev, WRITE, at)
ssize_t pwritev64(ARGS, off64_t at) VECTORED(pwritev64, WRITE, at)
#define FLAGGED(name, kind)                                                                       \
    {                                                                                             \
        never_waits = flags & RWF_NOWAIT && !(fcntl(fd, F_GETFL) & O_DIRECT);                     \
        VECTORED(name, kind, at, flags)                                                           \
    }

ssize_t preadv2(ARGS, off_t at, int flags) FLAGGED(preadv2, READ)
ssize_t preadv64v2(ARGS, off64_t at, int flags) FLAGGED(preadv64v2, READ)
ssize_t pwritev2(ARGS, off_t at, int flags) FLAGGED(pwritev2, WRITE)
ssize_t pwritev64v2(ARGS, off64_t at, int flags) FLAGGED(pwritev64v2, WRITE)

#define WHOLE(name, verdict_of, failure, ...)                                                     \
    {                                                                                             \
        int torn = 0;                                                                             \
        int64_t verdict = verdict_of;                                                             \
        if (verdict < 0)                                                                          \
            return failure;                                                                       \
        die_if(torn);                                                                             \
        return REAL(name)(__VA_ARGS__);                                                           \
    }

#define ON_FD on_fd(ALLOCATE, fd, 0, &torn)
int fallocate(int fd, int mode, off_t at, off_t size) WHOLE(fallocate, ON_FD, -1, fd, mode, at, size)
int fallocate64(int fd, int mode, off64_t at, off64_t size)
    WHOLE(fallocate64, ON_FD, -1, fd, mode, at, size)
int posix_fallocate(int fd, off_t at, off_t size)
    WHOLE(posix_fallocate, ON_FD, errno, fd, at, size)
int posix_fallocate64(int fd, off64_t at, off64_t size)
    WHOLE(posix_fallocate64, ON_FD, errno, fd, at, size)
int ftruncate(int fd, off_t size) WHOLE(ftruncate, ON_FD, -1, fd, size)
int ftruncate64(int fd, off64_t size) WHOLE(ftruncate64, ON_FD, -1, fd, size)

#define ON_PATH(at, path) on_path(NAME, at, path, &torn)
int rename(const char *from, const char *to) WHOLE(rename, ON_PATH(AT_FDCWD, to), -1, from, to)
int renameat(int a, const char *from, int b, const char *to)
    WHOLE(renameat, ON_PATH(b, to), -1, a, from, b, to)
int link(const char *from, const char *to) WHOLE(link, ON_PATH(AT_FDCWD, to), -1, from, to)
int linkat(int a, const char *from, int b, const char *to, int flags)
    WHOLE(linkat, ON_PATH(b, to), -1, a, from, b, to, flags)
int unlink(const char *path) WHOLE(unlink, ON_PATH(AT_FDCWD, path), -1, path)
int unlinkat(int at, const char *path, int flags) WHOLE(unlinkat, ON_PATH(at, path), -1, at, path, flags)
int rmdir(const char *path) WHOLE(rmdir, ON_PATH(AT_FDCWD, path), -1, path)
int mkdir(const char *path, mode_t mode) WHOLE(mkdir, ON_PATH(AT_FDCWD, path), -1, path, mode)
int mkdirat(int at, const char *path, mode_t mode) WHOLE(mkdirat, ON_PATH(at, path), -1, at, path, mode)

#define OPENING(name, at, ...)                                                                    \
    {                                                                                             \
        mode_t mode = 0;                                                                          \
        if (flags & (O_CREAT | __O_TMPFILE)) {                                                    \
            va_list rest;                                                                         \
            va_start(rest, flags);                                                                \
            mode = va_arg(rest, mode_t);                                                          \
            va_end(rest);                                                                         \
        }                                                                                         \
        int torn = 0;                                                                             \
        if (on_path(OPEN, at, path, &torn) < 0)                                                   \
            return -1;                                                                            \
        die_if(torn);                                                                             \
        return REAL(name)(__VA_ARGS__, flags, mode);                                              \
    }

int open(const char *path, int flags, ...) OPENING(open, AT_FDCWD, path)
int open64(const char *path, int flags, ...) OPENING(open64, AT_FDCWD, path)
int openat(int at, const char *path, int flags, ...) OPENING(openat, at, at, path)
int openat64(int at, const char *path, int flags, ...) OPENING(openat64, at, at, path)
