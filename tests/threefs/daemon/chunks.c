/* File data with the semantics of 3FS chunks: what was never written is absent, not zero; a chunk
 * is changed and read as a whole; reads stop at the last byte that exists, not at the length. */
#include "daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STRIPES = 64 };

static pthread_rwlock_t stripes[STRIPES] = {[0 ... STRIPES - 1] = PTHREAD_RWLOCK_INITIALIZER};

static pthread_rwlock_t *lock_of(uint64_t ino, uint64_t at)
{
    return &stripes[(ino * 31 + at / options.chunk_bytes) % STRIPES];
}

/* From `at` to the end of its chunk, but not more than `bytes`. */
static size_t within_chunk(uint64_t at, size_t bytes)
{
    size_t left = options.chunk_bytes - at % options.chunk_bytes;
    return bytes < left ? bytes : left;
}

/* Where the data of the chunk that holds `at` ends: its start if there is no such chunk. */
static uint64_t chunk_end(int fd, uint64_t at)
{
    uint64_t start = at - at % options.chunk_bytes, end = start;
    for (off_t data = (off_t)start;;) {
        data = lseek(fd, data, SEEK_DATA);
        if (data < 0 || (uint64_t)data >= start + options.chunk_bytes)
            return end;
        data = lseek(fd, data, SEEK_HOLE);
        if (data < 0)
            return end;
        end = start + options.chunk_bytes;
        if ((uint64_t)data < end)
            end = (uint64_t)data;
    }
}

static ssize_t read_piece(int fd, uint64_t ino, char *data, size_t bytes, uint64_t at)
{
    pthread_rwlock_t *lock = lock_of(ino, at);
    pthread_rwlock_rdlock(lock);
    off_t hole = lseek(fd, (off_t)at, SEEK_HOLE);
    if (hole < (off_t)(at + bytes)) { /* the rare case, looked at closely */
        uint64_t end = chunk_end(fd, at);
        uint64_t there = end > at ? end - at : 0;
        bytes = there < bytes ? (size_t)there : bytes;
    }
    ssize_t moved = bytes ? pread(fd, data, bytes, (off_t)at) : 0;
    int error = errno;
    pthread_rwlock_unlock(lock);
    return moved < 0 ? -error : moved;
}

ssize_t chunks_read(int fd, uint64_t ino, char *data, size_t bytes, uint64_t at, bool holes_fail)
{
    size_t done = 0, absent = 0; /* absent: just before the piece at hand */
    for (size_t offset = 0, piece; offset < bytes; offset += piece) {
        piece = within_chunk(at + offset, bytes - offset);
        ssize_t moved = read_piece(fd, ino, data + offset, piece, at + offset);
        if (moved < 0)
            return moved;
        if (moved && absent) {
            if (holes_fail)
                return -ENODATA;
            memset(data + offset - absent, 0, absent);
            done += absent;
            absent = 0;
        }
        done += (size_t)moved;
        absent += piece - (size_t)moved;
    }
    return (ssize_t)done;
}

ssize_t chunks_write(int fd, uint64_t ino, const char *data, size_t bytes, uint64_t at)
{
    for (size_t offset = 0; offset < bytes;) {
        size_t piece = within_chunk(at + offset, bytes - offset);
        pthread_rwlock_t *lock = lock_of(ino, at + offset);
        pthread_rwlock_wrlock(lock);
        ssize_t moved = pwrite(fd, data + offset, piece, (off_t)(at + offset));
        int error = errno;
        pthread_rwlock_unlock(lock);
        if (moved <= 0)
            return moved < 0 ? -error : -EIO;
        offset += (size_t)moved;
    }
    return (ssize_t)bytes;
}

/* The new last chunk exists from now on, with zeros where it had nothing; those before it don't. */
int chunks_truncate(int fd, uint64_t ino, uint64_t bytes)
{
    static char zeros[64 << 10];
    uint64_t last = bytes ? bytes - 1 : 0;
    int error = 0;
    pthread_rwlock_t *lock = lock_of(ino, last);
    pthread_rwlock_wrlock(lock);
    if (ftruncate(fd, (off_t)bytes))
        error = errno;
    for (uint64_t end = chunk_end(fd, last); !error && end < bytes;) {
        size_t piece = bytes - end < sizeof zeros ? bytes - end : sizeof zeros;
        ssize_t moved = pwrite(fd, zeros, piece, (off_t)end);
        if (moved < 0)
            error = errno;
        else
            end += (uint64_t)moved;
    }
    pthread_rwlock_unlock(lock);
    return error;
}

int chunks_punch(int fd, uint64_t ino, uint64_t from, uint64_t to)
{
    if (from % options.chunk_bytes || to % options.chunk_bytes)
        return EINVAL;
    for (; from < to; from += options.chunk_bytes) {
        pthread_rwlock_t *lock = lock_of(ino, from);
        pthread_rwlock_wrlock(lock);
        int failed = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from,
                               options.chunk_bytes);
        int error = errno;
        pthread_rwlock_unlock(lock);
        if (failed)
            return error;
    }
    return 0;
}
