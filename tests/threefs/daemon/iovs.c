/* Registered memory, and the grammar of the keys that it is registered under. */
#include "daemon.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHARED "/dev/shm/"

struct key {
    uint8_t id[ID_BYTES];
    size_t block_bytes;
    bool is_ring, has_timeout, has_ring_attributes;
    struct ring_attributes ring;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct iov *table[MOST_IOVS];
static uint64_t last_serial;
static int slots;

static bool parse_id(const char *text, size_t length, uint8_t id[ID_BYTES])
{
    static const int groups[] = {8, 4, 4, 4, 12};
    char hex[33];
    int digits = 0;
    if (length != 36)
        return false;
    for (int group = 0; group < 5; group++) {
        if (group && *text++ != '-')
            return false;
        for (int i = 0; i < groups[group]; i++, text++) {
            if (!isxdigit((unsigned char)*text))
                return false;
            hex[digits++] = *text;
        }
    }
    for (int i = 0; i < ID_BYTES; i++) {
        char byte[3] = {hex[2 * i], hex[2 * i + 1], 0};
        id[i] = (uint8_t)strtoul(byte, NULL, 16);
    }
    return true;
}

static bool parse_number(const char *text, int base, bool may_be_negative, int64_t *number)
{
    char *end;
    if (!isdigit((unsigned char)*text) && !(may_be_negative && *text == '-'))
        return false;
    errno = 0;
    *number = strtoll(text, &end, base);
    return !*end && end[-1] != '-' && !errno;
}

static bool parse_attribute(const char *text, struct key *key)
{
    const char *value = text + 1;
    int64_t number = 0;
    switch (*text) {
    case 'b':
        if (!parse_number(value, 10, false, &number) || number <= 0)
            return false;
        key->block_bytes = (size_t)number;
        return true;
    case 'r':
    case 'w':
        if (!parse_number(value, 10, !fault(STRICT_DEPTH), &number) || number > INT_MAX ||
            number < -INT_MAX)
            return false;
        key->is_ring = true;
        key->ring.reads = *text == 'r';
        key->ring.depth = (int)number;
        return true;
    }
    key->has_ring_attributes = true;
    switch (*text) {
    case 't':
        key->has_timeout = parse_number(value, 10, false, &number) && number <= INT_MAX;
        key->ring.timeout_ns = number * 1000000;
        return key->has_timeout;
    case 'f':
        if (!parse_number(value, 2, false, &number))
            return false;
        key->ring.flags = (uint64_t)number;
        return true;
    case 'p':
        if (strlen(value) > 1 || !strchr("hnl", *value))
            return false;
        key->ring.priority = *value == 'h' ? 0 : *value == 'l' ? 2 : 1;
        return true;
    }
    return false;
}

static bool parse(const char *text, struct key *key)
{
    char copy[256], *rest = copy;
    if (strlen(text) >= sizeof copy)
        return false;
    strcpy(copy, text);
    const char *id = strsep(&rest, ".");
    *key = (struct key){.ring = {.priority = 1}};
    if (!parse_id(id, strlen(id), key->id))
        return false;
    while (rest)
        if (!parse_attribute(strsep(&rest, "."), key))
            return false;
    /* a ring without .t makes the daemon of 3FS read what is not there: refused here */
    return key->is_ring ? key->has_timeout : !key->has_ring_attributes;
}

/* The whole of a regular file that lies directly in /dev/shm. */
static int map(const char *target, char **base, size_t *bytes)
{
    struct stat found;
    if (strncmp(target, SHARED, strlen(SHARED)) || strchr(target + strlen(SHARED), '/') ||
        strlen(target) >= 256)
        return EINVAL;
    if (lstat(target, &found) || !S_ISREG(found.st_mode) || !found.st_size)
        return EINVAL;
    int fd = open(target, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return EIO;
    *bytes = (size_t)found.st_size;
    *base = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return *base == MAP_FAILED ? EIO : 0;
}

static void destroy(struct iov *iov)
{
    if (iov->ring)
        ring_destroy(iov->ring);
    munmap(iov->base, iov->bytes);
    free(iov);
}

void iov_release(struct iov *iov)
{
    pthread_mutex_lock(&lock);
    bool is_last = !--iov->references;
    pthread_mutex_unlock(&lock);
    if (is_last)
        destroy(iov);
}

static int publish(struct iov *iov)
{
    int free_slot = -1;
    pthread_mutex_lock(&lock);
    int error = 0;
    for (int i = MOST_IOVS - 1; i >= 0; i--) {
        if (!table[i])
            free_slot = i;
        else if (!memcmp(table[i]->id, iov->id, ID_BYTES))
            error = EEXIST;
    }
    if (free_slot < 0)
        error = EMFILE;
    if (!error) {
        iov->serial = ++last_serial;
        table[free_slot] = iov;
        if (free_slot >= slots)
            slots = free_slot + 1;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

int iov_register(const char *key_text, const char *target, uint32_t tid, uint64_t *serial)
{
    struct key key;
    if (!parse(key_text, &key))
        return EINVAL;
    struct iov *iov = calloc(1, sizeof *iov);
    int error = map(target, &iov->base, &iov->bytes);
    if (error) {
        free(iov);
        return error;
    }
    strcpy(iov->key, key_text);
    strcpy(iov->target, target);
    memcpy(iov->id, key.id, ID_BYTES);
    iov->tid = tid;
    iov->references = 1;
    iov->block_bytes = key.block_bytes ? key.block_bytes : iov->bytes;
    if (key.block_bytes > iov->bytes)
        error = EINVAL;
    if (key.is_ring && !error) {
        iov->ring = ring_create(iov->base, iov->bytes, &key.ring);
        error = iov->ring ? 0 : EINVAL;
    }
    if (!error)
        error = publish(iov);
    if (error) {
        destroy(iov);
        return error;
    }
    count(REGISTERED, 1);
    *serial = iov->serial;
    return 0;
}

enum by { BY_ID, BY_KEY, BY_SERIAL, BY_THREAD };

static bool is_sought(const struct iov *iov, enum by by, const void *sought)
{
    switch (by) {
    case BY_ID: return !memcmp(iov->id, sought, ID_BYTES);
    case BY_KEY: return !strcmp(iov->key, sought);
    case BY_SERIAL: return iov->serial == *(const uint64_t *)sought;
    case BY_THREAD: return iov->tid == *(const uint32_t *)sought;
    }
    return false;
}

/* The first one, with a reference; or, removed from the table, with the table's. */
static struct iov *find(enum by by, const void *sought, bool remove)
{
    struct iov *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < slots && !found; i++) {
        if (!table[i] || !is_sought(table[i], by, sought))
            continue;
        found = table[i];
        if (remove)
            table[i] = NULL;
        else
            found->references++;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

struct iov *iov_by_id(const uint8_t id[ID_BYTES])
{
    return find(BY_ID, id, false);
}

struct iov *iov_by_key(const char *key)
{
    return find(BY_KEY, key, false);
}

struct iov *iov_by_serial(uint64_t serial)
{
    return find(BY_SERIAL, &serial, false);
}

struct iov *iov_keep(struct iov *iov)
{
    pthread_mutex_lock(&lock);
    iov->references++;
    pthread_mutex_unlock(&lock);
    return iov;
}

struct iov *iov_at(int slot)
{
    pthread_mutex_lock(&lock);
    struct iov *iov = table[slot];
    if (iov)
        iov->references++;
    pthread_mutex_unlock(&lock);
    return iov;
}

int iov_slots(void)
{
    pthread_mutex_lock(&lock);
    int most = slots;
    pthread_mutex_unlock(&lock);
    return most;
}

static bool drop(enum by by, const void *sought)
{
    struct iov *iov = find(by, sought, true);
    if (!iov)
        return false;
    count(DROPPED, 1);
    iov_release(iov);
    return true;
}

int iov_unregister(const char *key)
{
    return drop(BY_KEY, key) ? 0 : ENOENT;
}

void iov_unregister_all_of(uint32_t tid)
{
    while (drop(BY_THREAD, &tid))
        ;
}
