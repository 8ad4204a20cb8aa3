/* 3fs-virt: the submit semaphores, and registration by symlink. */
#include "daemon.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const semaphore_names[PRIORITIES] = {
    "submit-ios.ph", "submit-ios", "submit-ios.pl",
};

/* An open directory. Whoever opened `iovs` owns, by thread, what is registered there. */
struct directory {
    bool is_iovs;
    uint32_t tid;
};

static int semaphore_named(const char *name)
{
    for (int i = 0; i < PRIORITIES; i++)
        if (!strcmp(name, semaphore_names[i]))
            return i;
    return -1;
}

static bool is_directory(uint64_t id)
{
    return id == VIRT_ROOT || id == VIRT_IOVS;
}

/* What the link points to; false if it is no link, or gone. */
static bool target_of(uint64_t id, char target[256])
{
    if (id >= VIRT_SEMAPHORE && id < VIRT_SEMAPHORE + PRIORITIES) {
        snprintf(target, 256, "%s", semaphore_path((int)id - VIRT_SEMAPHORE));
        return true;
    }
    struct iov *iov = id >= VIRT_IOV ? iov_by_serial(id - VIRT_IOV) : NULL;
    if (!iov)
        return false;
    memcpy(target, iov->target, sizeof iov->target);
    iov_release(iov);
    return true;
}

static int fill(uint64_t id, struct fuse_attr *attr)
{
    char target[256];
    struct stat found = {.st_ino = VIRT_BIT | id, .st_nlink = 1};
    if (is_directory(id)) {
        found.st_mode = S_IFDIR | 0777;
    } else if (target_of(id, target)) {
        found.st_mode = S_IFLNK | 0777;
        found.st_size = (off_t)strlen(target);
    } else {
        return ENOENT;
    }
    fill_attr(attr, &found);
    return 0;
}

static int answer_entry(struct call *call, uint64_t id)
{
    struct fuse_entry_out out = {.nodeid = VIRT_BIT | id};
    int error = fill(id, &out.attr);
    set_ms(options.entry_ms, &out.entry_valid, &out.entry_valid_nsec);
    set_ms(options.attr_ms, &out.attr_valid, &out.attr_valid_nsec);
    return error ? error : answer(call, &out, sizeof out);
}

int virt_enter(struct call *call)
{
    return answer_entry(call, VIRT_ROOT);
}

static uint64_t id_at(const struct call *call)
{
    return call->head.nodeid & ~VIRT_BIT;
}

static int on_lookup(struct call *call)
{
    if (id_at(call) == VIRT_ROOT)
        return strcmp(call->in, "iovs") ? ENOENT : answer_entry(call, VIRT_IOVS);
    int semaphore = semaphore_named(call->in);
    if (semaphore >= 0)
        return answer_entry(call, VIRT_SEMAPHORE + (uint64_t)semaphore);
    struct iov *iov = iov_by_key(call->in);
    if (!iov)
        return ENOENT;
    uint64_t serial = iov->serial;
    iov_release(iov);
    return answer_entry(call, VIRT_IOV + serial);
}

static int on_forget(struct call *call)
{
    (void)call;
    return NO_REPLY;
}

static int on_getattr(struct call *call)
{
    struct fuse_attr_out out = {0};
    int error = fill(id_at(call), &out.attr);
    set_ms(options.attr_ms, &out.attr_valid, &out.attr_valid_nsec);
    return error ? error : answer(call, &out, sizeof out);
}

static int on_readlink(struct call *call)
{
    char target[256];
    if (!target_of(id_at(call), target))
        return is_directory(id_at(call)) ? EINVAL : ENOENT;
    return answer(call, target, strlen(target));
}

static int on_symlink(struct call *call)
{
    const char *key = call->in, *target = key + strlen(key) + 1;
    uint64_t serial;
    if (id_at(call) != VIRT_IOVS)
        return EPERM;
    int error = (int)fault(REFUSE_ERRNO);
    if (!error)
        error = iov_register(key, target, call->head.pid, &serial);
    return error ? error : answer_entry(call, VIRT_IOV + serial);
}

static int on_unlink(struct call *call)
{
    if (id_at(call) != VIRT_IOVS || semaphore_named(call->in) >= 0)
        return EPERM;
    return iov_unregister(call->in);
}

static int on_opendir(struct call *call)
{
    struct directory *directory = malloc(sizeof *directory);
    *directory = (struct directory){id_at(call) == VIRT_IOVS, call->head.pid};
    struct fuse_open_out out = {.fh = (uintptr_t)directory};
    return answer(call, &out, sizeof out);
}

static int on_readdir(struct call *call)
{
    const struct fuse_read_in *in = call->in;
    if (id_at(call) == VIRT_ROOT) {
        if (!in->offset)
            add_dirent(call, in->size, VIRT_BIT | VIRT_IOVS, "iovs", DT_DIR, 1);
        return 0;
    }
    for (uint64_t at = in->offset; at < PRIORITIES + (uint64_t)iov_slots(); at++) {
        struct iov *iov = at < PRIORITIES ? NULL : iov_at((int)at - PRIORITIES);
        if (at >= PRIORITIES && !iov)
            continue;
        uint64_t id = iov ? VIRT_IOV + iov->serial : VIRT_SEMAPHORE + at;
        bool fits = add_dirent(call, in->size, VIRT_BIT | id, iov ? iov->key : semaphore_names[at],
                               DT_LNK, at + 1);
        if (iov)
            iov_release(iov);
        if (!fits)
            break;
    }
    return 0;
}

/* Whoever lists `iovs` loses what that thread has registered: 3FS takes any release for a death. */
static int on_releasedir(struct call *call)
{
    struct directory *directory =
        (void *)(uintptr_t)((const struct fuse_release_in *)call->in)->fh;
    if (directory->is_iovs)
        iov_unregister_all_of(directory->tid);
    free(directory);
    return 0;
}

static int on_change(struct call *call)
{
    (void)call;
    return EPERM;
}

handler *const virt_handlers[OPCODES] = {
    [FUSE_LOOKUP] = on_lookup, [FUSE_FORGET] = on_forget, [FUSE_GETATTR] = on_getattr,
    [FUSE_READLINK] = on_readlink, [FUSE_SYMLINK] = on_symlink, [FUSE_UNLINK] = on_unlink,
    [FUSE_OPENDIR] = on_opendir, [FUSE_READDIR] = on_readdir, [FUSE_RELEASEDIR] = on_releasedir,
    [FUSE_SETATTR] = on_change, [FUSE_MKDIR] = on_change, [FUSE_RMDIR] = on_change,
    [FUSE_RENAME] = on_change, [FUSE_RENAME2] = on_change, [FUSE_LINK] = on_change,
    [FUSE_CREATE] = on_change,
};
