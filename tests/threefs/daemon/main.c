/* Options, mount, threads, a clean end. */
#include "daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

enum { SERVERS = 6 };

struct options options = {
    .cluster = "stand-in", .chunk_bytes = 64 << 10,
    .attr_ms = 50, .entry_ms = 50, .absent_ms = 50, .workers = 4,
};

int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

void die(const char *format, ...)
{
    va_list rest;
    va_start(rest, format);
    vfprintf(stderr, format, rest);
    va_end(rest);
    fputc('\n', stderr);
    abort();
}

static void parse(int argc, char **argv)
{
    static const struct option names[] = {
        {"backing", 1, 0, 'b'}, {"mount", 1, 0, 'm'}, {"control", 1, 0, 'c'},
        {"cluster", 1, 0, 'C'}, {"chunk-bytes", 1, 0, 'k'}, {"attr-ms", 1, 0, 'a'},
        {"entry-ms", 1, 0, 'e'}, {"absent-ms", 1, 0, 'n'}, {"workers", 1, 0, 'w'},
        {"layout", 0, 0, 'l'}, {0},
    };
    for (int name; (name = getopt_long(argc, argv, "", names, NULL)) != -1;)
        switch (name) {
        case 'b': options.backing = optarg; break;
        case 'm': options.mount = optarg; break;
        case 'c': options.control = optarg; break;
        case 'C': options.cluster = optarg; break;
        case 'k': options.chunk_bytes = (uint32_t)strtoul(optarg, NULL, 10); break;
        case 'a': options.attr_ms = atoi(optarg); break;
        case 'e': options.entry_ms = atoi(optarg); break;
        case 'n': options.absent_ms = atoi(optarg); break;
        case 'w': options.workers = atoi(optarg); break;
        case 'l': ring_print_layout(); exit(0);
        default: exit(2);
        }
    if (!options.backing || !options.mount || !options.control)
        die("--backing, --mount and --control are needed");
}

static int attach(void)
{
    int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        die("/dev/fuse: %s", strerror(errno));
    char data[128], source[64];
    snprintf(data, sizeof data,
             "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions", fd);
    snprintf(source, sizeof source, "hf3fs.%s", options.cluster);
    if (mount(source, options.mount, "fuse.hf3fs", MS_NOSUID | MS_NODEV, data))
        die("mount %s: %s", options.mount, strerror(errno));
    return fd;
}

static void *serve_thread(void *fd)
{
    serve((int)(intptr_t)fd);
    return NULL;
}

/* Until a signal, or until the parent that holds the other end of stdin is gone. */
static void wait_for_end(const sigset_t *signals)
{
    struct pollfd ends[2] = {{signalfd(-1, signals, SFD_CLOEXEC), POLLIN, 0}, {0, POLLIN, 0}};
    while (poll(ends, 2, -1) < 0 && errno == EINTR)
        ;
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    umask(0);
    struct rlimit files = {1 << 16, 1 << 16};
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);

    nodes_begin();
    rings_begin();
    jobs_begin();
    control_begin();
    int fd = attach();
    for (int i = 0; i < SERVERS; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, serve_thread, (void *)(intptr_t)fd);
    }
    wait_for_end(&signals);
    umount2(options.mount, MNT_DETACH);
    rings_end();
    _exit(0);
}
