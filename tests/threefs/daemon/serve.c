/* The FUSE request loop. */
#include "daemon.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { HEADROOM = 64 << 10 };

int answer(struct call *call, const void *data, size_t bytes)
{
    memcpy(call->out + call->out_bytes, data, bytes);
    call->out_bytes += bytes;
    return 0;
}

int answer_ioctl(struct call *call, const void *data, size_t bytes)
{
    struct fuse_ioctl_out out = {0};
    answer(call, &out, sizeof out);
    return answer(call, data, bytes);
}

void set_ms(int ms, uint64_t *seconds, uint32_t *nanoseconds)
{
    *seconds = (uint64_t)ms / 1000;
    *nanoseconds = (uint32_t)(ms % 1000) * 1000000;
}

void fill_attr(struct fuse_attr *attr, const struct stat *found)
{
    *attr = (struct fuse_attr){
        .ino = found->st_ino, .size = (uint64_t)found->st_size,
        .blocks = (uint64_t)found->st_blocks,
        .atime = (uint64_t)found->st_atim.tv_sec, .atimensec = (uint32_t)found->st_atim.tv_nsec,
        .mtime = (uint64_t)found->st_mtim.tv_sec, .mtimensec = (uint32_t)found->st_mtim.tv_nsec,
        .ctime = (uint64_t)found->st_ctim.tv_sec, .ctimensec = (uint32_t)found->st_ctim.tv_nsec,
        .mode = found->st_mode, .nlink = (uint32_t)found->st_nlink, .uid = found->st_uid,
        .gid = found->st_gid, .blksize = options.chunk_bytes,
    };
}

bool add_dirent(struct call *call, size_t room, uint64_t ino, const char *name, uint32_t type,
                uint64_t next)
{
    struct fuse_dirent entry = {ino, next, (uint32_t)strlen(name), type};
    size_t bytes = FUSE_DIRENT_ALIGN(sizeof entry + entry.namelen);
    if (call->out_bytes + bytes > room)
        return false;
    char *at = call->out + call->out_bytes;
    memset(at, 0, bytes);
    memcpy(at, &entry, sizeof entry);
    memcpy(at + sizeof entry, name, entry.namelen);
    call->out_bytes += bytes;
    return true;
}

static int on_init(struct call *call)
{
    const struct fuse_init_in *in = call->in;
    uint64_t wanted = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_MAX_PAGES | FUSE_PARALLEL_DIROPS |
                      FUSE_HAS_IOCTL_DIR | FUSE_ASYNC_DIO;
    struct fuse_init_out out = {
        .major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION,
        .max_readahead = in->max_readahead, .flags = (uint32_t)(in->flags & wanted),
        .max_background = 64, .congestion_threshold = 48, .max_write = MOST_DATA_BYTES,
        .time_gran = 1, .max_pages = MOST_DATA_BYTES / 4096,
    };
    return answer(call, &out, sizeof out);
}

static handler *handler_of(const struct call *call)
{
    const struct fuse_in_header *head = &call->head;
    if (head->opcode == FUSE_INIT)
        return on_init;
    if (head->opcode == FUSE_LOOKUP && head->nodeid == FUSE_ROOT_ID &&
        !strcmp(call->in, VIRT_NAME))
        return virt_enter;
    if (head->opcode >= OPCODES)
        return NULL;
    /* one message forgets nodes of both kinds */
    bool is_virtual = head->nodeid & VIRT_BIT && head->opcode != FUSE_BATCH_FORGET;
    return (is_virtual ? virt_handlers : file_handlers)[head->opcode];
}

static void reply(int fuse_fd, struct call *call, int error)
{
    struct fuse_out_header head = {.unique = call->head.unique, .error = -error};
    if (error)
        call->out_bytes = 0;
    head.len = (uint32_t)(sizeof head + call->out_bytes);
    struct iovec parts[2] = {{&head, sizeof head}, {call->out, call->out_bytes}};
    if (writev(fuse_fd, parts, 2) < 0 && errno != ENOENT && errno != ENODEV && errno != EPERM)
        die("reply to FUSE call %u: %s", call->head.opcode, strerror(errno));
}

void serve(int fuse_fd)
{
    size_t room = MOST_DATA_BYTES + HEADROOM;
    char *in = malloc(room);
    struct call call = {.out = malloc(room)};
    for (;;) {
        ssize_t bytes = read(fuse_fd, in, room);
        if (bytes < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT))
            continue;
        if (bytes < (ssize_t)sizeof call.head)
            return; /* unmounted */
        memcpy(&call.head, in, sizeof call.head);
        call.in = in + sizeof call.head;
        call.out_bytes = 0;
        count_call(call.head.opcode);
        if (call.head.opcode == FUSE_INTERRUPT)
            continue;
        handler *handle = handler_of(&call);
        int error = handle ? handle(&call) : ENOSYS;
        if (error != NO_REPLY)
            reply(fuse_fd, &call, error);
        if (call.head.opcode == FUSE_INIT && write(STDOUT_FILENO, "ready\n", 6) < 0)
            return;
    }
}
