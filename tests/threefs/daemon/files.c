/* Ordinary files, passed through to the backing directory. */
#include "daemon.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { BLOCK_BYTES = 2 << 20 };

struct handle {
    struct node *node;
    bool writes;
};

struct path {
    char text[32];
};

static struct path path_of(const struct node *node)
{
    struct path path;
    snprintf(path.text, sizeof path.text, "/proc/self/fd/%d", node->path_fd);
    return path;
}

static struct node *node_at(const struct call *call)
{
    return node_of(call->head.nodeid);
}

static int error_of(int failed)
{
    return failed < 0 ? errno : 0;
}

static int answer_entry(struct call *call, struct node *parent, const char *name,
                        struct node **node)
{
    struct stat found;
    int error = node_look(parent, name, node, &found);
    if (error)
        return error;
    struct fuse_entry_out out = {.nodeid = (*node)->id};
    set_ms(options.entry_ms, &out.entry_valid, &out.entry_valid_nsec);
    set_ms(options.attr_ms, &out.attr_valid, &out.attr_valid_nsec);
    fill_attr(&out.attr, &found);
    return answer(call, &out, sizeof out);
}

static int on_lookup(struct call *call)
{
    struct node *node;
    int error = answer_entry(call, node_at(call), call->in, &node);
    if (error != ENOENT)
        return error;
    struct fuse_entry_out out = {0}; /* node 0: absence, that may be cached too */
    set_ms(options.absent_ms, &out.entry_valid, &out.entry_valid_nsec);
    return answer(call, &out, sizeof out);
}

static int on_forget(struct call *call)
{
    node_forget(call->head.nodeid, ((const struct fuse_forget_in *)call->in)->nlookup);
    return NO_REPLY;
}

static int on_batch_forget(struct call *call)
{
    const struct fuse_batch_forget_in *in = call->in;
    const struct fuse_forget_one *one = (const void *)(in + 1);
    for (uint32_t i = 0; i < in->count; i++)
        node_forget(one[i].nodeid, one[i].nlookup);
    return NO_REPLY;
}

static int on_getattr(struct call *call)
{
    struct stat found;
    if (fstatat(node_at(call)->path_fd, "", &found, AT_EMPTY_PATH))
        return errno;
    struct fuse_attr_out out = {0};
    set_ms(options.attr_ms, &out.attr_valid, &out.attr_valid_nsec);
    fill_attr(&out.attr, &found);
    return answer(call, &out, sizeof out);
}

static int truncate_node(struct node *node, uint64_t bytes)
{
    int error = node_open(node, true);
    if (error)
        return error;
    error = chunks_truncate(node->io_fd, node->id, bytes);
    node_close(node, true);
    return error;
}

static struct timespec time_of(uint32_t valid, uint32_t given, uint32_t current, uint64_t seconds,
                               uint32_t nanoseconds)
{
    if (valid & current)
        return (struct timespec){0, UTIME_NOW};
    if (valid & given)
        return (struct timespec){(time_t)seconds, nanoseconds};
    return (struct timespec){0, UTIME_OMIT};
}

static int on_setattr(struct call *call)
{
    const struct fuse_setattr_in *in = call->in;
    struct node *node = node_at(call);
    struct path path = path_of(node);
    int error = refuse_change();
    if (!error && in->valid & FATTR_SIZE)
        error = truncate_node(node, in->size);
    if (!error && in->valid & FATTR_MODE)
        error = error_of(chmod(path.text, in->mode & 07777));
    if (!error && in->valid & (FATTR_UID | FATTR_GID))
        error = error_of(chown(path.text, in->valid & FATTR_UID ? in->uid : (uid_t)-1,
                               in->valid & FATTR_GID ? in->gid : (gid_t)-1));
    if (!error && in->valid & (FATTR_ATIME | FATTR_MTIME)) {
        struct timespec times[2] = {
            time_of(in->valid, FATTR_ATIME, FATTR_ATIME_NOW, in->atime, in->atimensec),
            time_of(in->valid, FATTR_MTIME, FATTR_MTIME_NOW, in->mtime, in->mtimensec),
        };
        error = error_of(utimensat(AT_FDCWD, path.text, times, 0));
    }
    return error ? error : on_getattr(call);
}

static int on_readlink(struct call *call)
{
    ssize_t bytes = readlinkat(node_at(call)->path_fd, "", call->out, MOST_DATA_BYTES);
    call->out_bytes = bytes < 0 ? 0 : (size_t)bytes;
    return error_of((int)bytes);
}

static int on_symlink(struct call *call)
{
    const char *name = call->in, *target = name + strlen(name) + 1;
    struct node *parent = node_at(call), *node;
    int error = refuse_change();
    if (!error)
        error = error_of(symlinkat(target, parent->path_fd, name));
    return error ? error : answer_entry(call, parent, name, &node);
}

static int on_mkdir(struct call *call)
{
    const struct fuse_mkdir_in *in = call->in;
    const char *name = (const char *)(in + 1);
    struct node *parent = node_at(call), *node;
    int error = refuse_change();
    if (!error)
        error = error_of(mkdirat(parent->path_fd, name, in->mode));
    return error ? error : answer_entry(call, parent, name, &node);
}

static int on_unlink(struct call *call)
{
    int error = refuse_change();
    return error ? error : error_of(unlinkat(node_at(call)->path_fd, call->in, 0));
}

static int on_rmdir(struct call *call)
{
    int error = refuse_change();
    return error ? error : error_of(unlinkat(node_at(call)->path_fd, call->in, AT_REMOVEDIR));
}

static int rename_to(struct call *call, uint64_t parent, const char *name)
{
    int error = refuse_change();
    if (parent & VIRT_BIT)
        return EPERM;
    return error ? error
                 : error_of(renameat(node_at(call)->path_fd, name, node_of(parent)->path_fd,
                                     name + strlen(name) + 1));
}

static int on_rename(struct call *call)
{
    const struct fuse_rename_in *in = call->in;
    return rename_to(call, in->newdir, (const char *)(in + 1));
}

static int on_rename2(struct call *call)
{
    const struct fuse_rename2_in *in = call->in;
    return in->flags ? ENOSYS : rename_to(call, in->newdir, (const char *)(in + 1));
}

static int on_link(struct call *call)
{
    const struct fuse_link_in *in = call->in;
    const char *name = (const char *)(in + 1);
    struct node *parent = node_at(call), *node;
    struct path from = path_of(node_of(in->oldnodeid));
    int error = refuse_change();
    if (!error)
        error = error_of(linkat(AT_FDCWD, from.text, parent->path_fd, name, AT_SYMLINK_FOLLOW));
    return error ? error : answer_entry(call, parent, name, &node);
}

static int answer_open(struct call *call, struct node *node, uint32_t flags)
{
    bool writes = (flags & O_ACCMODE) != O_RDONLY;
    if (writes && refuse_change())
        return EROFS;
    int error = node_open(node, writes);
    if (error)
        return error;
    struct handle *handle = malloc(sizeof *handle);
    *handle = (struct handle){node, writes};
    struct fuse_open_out out = {
        .fh = (uintptr_t)handle, .open_flags = flags & O_DIRECT ? FOPEN_DIRECT_IO : 0,
    };
    return answer(call, &out, sizeof out);
}

static int on_open(struct call *call)
{
    return answer_open(call, node_at(call), ((const struct fuse_open_in *)call->in)->flags);
}

static int on_create(struct call *call)
{
    const struct fuse_create_in *in = call->in;
    const char *name = (const char *)(in + 1);
    struct node *parent = node_at(call), *node;
    if (refuse_change())
        return EROFS;
    int fd = openat(parent->path_fd, name,
                    O_CREAT | O_WRONLY | O_NOFOLLOW | O_CLOEXEC | (int)(in->flags & O_EXCL),
                    in->mode & 07777);
    if (fd < 0)
        return errno;
    close(fd);
    int error = answer_entry(call, parent, name, &node);
    return error ? error : answer_open(call, node, in->flags);
}

static int on_release(struct call *call)
{
    struct handle *handle = (void *)(uintptr_t)((const struct fuse_release_in *)call->in)->fh;
    node_close(handle->node, handle->writes);
    free(handle);
    return 0;
}

static int on_read(struct call *call)
{
    const struct fuse_read_in *in = call->in;
    struct node *node = node_at(call);
    int error = fuse_fault(true);
    if (error)
        return error;
    ssize_t bytes = chunks_read(node->io_fd, node->id, call->out, in->size, in->offset, false);
    if (bytes < 0)
        return (int)-bytes;
    count(FUSE_READS, 1);
    count(FUSE_READ_BYTES, bytes);
    call->out_bytes = (size_t)bytes;
    return 0;
}

static int on_write(struct call *call)
{
    const struct fuse_write_in *in = call->in;
    struct node *node = node_at(call);
    int error = fuse_fault(false);
    if (error)
        return error;
    const char *data = (const char *)(in + 1);
    ssize_t bytes = chunks_write(node->io_fd, node->id, data, in->size, in->offset);
    if (bytes < 0)
        return (int)-bytes;
    count(FUSE_WRITES, 1);
    count(FUSE_WRITTEN_BYTES, bytes);
    struct fuse_write_out out = {.size = (uint32_t)bytes};
    return answer(call, &out, sizeof out);
}

/* The machine outlives the tests: what the backing file system took is safe. */
static int on_fsync(struct call *call)
{
    (void)call;
    return 0;
}

static int on_opendir(struct call *call)
{
    DIR *directory = opendir(path_of(node_at(call)).text);
    if (!directory)
        return errno;
    struct fuse_open_out out = {.fh = (uintptr_t)directory};
    return answer(call, &out, sizeof out);
}

static int on_readdir(struct call *call)
{
    const struct fuse_read_in *in = call->in;
    DIR *directory = (void *)(uintptr_t)in->fh;
    seekdir(directory, (long)in->offset);
    for (struct dirent *entry; (entry = readdir(directory));)
        if (!add_dirent(call, in->size, entry->d_ino, entry->d_name, entry->d_type,
                        (uint64_t)telldir(directory)))
            break;
    return 0;
}

static int on_releasedir(struct call *call)
{
    closedir((void *)(uintptr_t)((const struct fuse_release_in *)call->in)->fh);
    return 0;
}

static int on_statfs(struct call *call)
{
    struct statvfs found;
    if (statvfs(options.backing, &found))
        return errno;
    uint64_t unit = BLOCK_BYTES / found.f_frsize;
    struct fuse_statfs_out out = {{
        .blocks = found.f_blocks / unit, .bfree = found.f_bavail / unit,
        .bavail = found.f_bavail / unit, .files = found.f_files, .ffree = found.f_favail,
        .bsize = BLOCK_BYTES, .frsize = BLOCK_BYTES, .namelen = 255,
    }};
    return answer(call, &out, sizeof out);
}

/* No fallocate, lseek, flock or extended attributes, as in 3FS: locks are the kernel's, local. */
handler *const file_handlers[OPCODES] = {
    [FUSE_LOOKUP] = on_lookup, [FUSE_FORGET] = on_forget, [FUSE_BATCH_FORGET] = on_batch_forget,
    [FUSE_GETATTR] = on_getattr, [FUSE_SETATTR] = on_setattr, [FUSE_READLINK] = on_readlink,
    [FUSE_SYMLINK] = on_symlink, [FUSE_MKDIR] = on_mkdir, [FUSE_UNLINK] = on_unlink,
    [FUSE_RMDIR] = on_rmdir, [FUSE_RENAME] = on_rename, [FUSE_RENAME2] = on_rename2,
    [FUSE_LINK] = on_link, [FUSE_OPEN] = on_open, [FUSE_CREATE] = on_create,
    [FUSE_READ] = on_read, [FUSE_WRITE] = on_write, [FUSE_RELEASE] = on_release,
    [FUSE_FSYNC] = on_fsync, [FUSE_FLUSH] = on_fsync, [FUSE_FSYNCDIR] = on_fsync,
    [FUSE_OPENDIR] = on_opendir, [FUSE_READDIR] = on_readdir, [FUSE_RELEASEDIR] = on_releasedir,
    [FUSE_STATFS] = on_statfs, [FUSE_IOCTL] = on_ioctl,
};
