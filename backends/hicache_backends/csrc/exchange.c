#define _GNU_SOURCE
#include "exchange.h"

#include "clock.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum {
    FIRST_BUFFER = 16 << 10,
    MAX_LINE = 64 << 10,
    MAX_REPLIES = 64 << 20, /* of one exchange */
    MAX_SIZE_DIGITS = 10,
    AWAKE_NS = 80000,     /* most replies come within this; to sleep and be woken takes as long */
    CROWDED_EXCHANGES = 32,
    HOPELESS_TRIES = 16,
};

static int wait_for(int fd, short events, int64_t deadline_ns)
{
    int64_t left = deadline_ns - now_ns();
    if (left <= 0)
        return ETIMEDOUT;
    struct timespec timeout = {left / 1000000000, left % 1000000000};
    struct pollfd polled = {.fd = fd, .events = events};
    if (ppoll(&polled, 1, &timeout, NULL) < 0 && errno != EINTR)
        return errno;
    return polled.revents & POLLNVAL ? EBADF : 0;
}

static int send_all(int fd, const char *data, size_t size, int64_t deadline_ns)
{
    while (size) {
        ssize_t n = send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0) {
            data += n;
            size -= (size_t)n;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            int status = wait_for(fd, POLLOUT, deadline_ns);
            if (status)
                return status;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

/* The size of the reply that begins `data`: 0 while that cannot be known, -1 if it is none. */
static int64_t reply_size(const char *data, size_t size)
{
    if (!size)
        return 0;
    if (!memchr("+-:$", data[0], 4))
        return -1;
    const char *end = memmem(data, size, "\r\n", 2);
    if (!end)
        return size > MAX_LINE ? -1 : 0;
    int64_t line = end + 2 - data;
    if (data[0] != '$')
        return line;
    if (line == 5 && !memcmp(data, "$-1", 3))
        return line;
    if (line == 3 || line > 3 + MAX_SIZE_DIGITS)
        return -1;
    int64_t bulk = 0;
    for (const char *digit = data + 1; digit < end; digit++) {
        if (*digit < '0' || *digit > '9')
            return -1;
        bulk = 10 * bulk + (*digit - '0');
    }
    return line + bulk + 2;
}

/* Offers the processor to others. Whether one took it. */
static bool yielded(void)
{
    struct rusage before, after;
    if (getrusage(RUSAGE_THREAD, &before))
        return true;
    sched_yield();
    return getrusage(RUSAGE_THREAD, &after) || before.ru_nivcsw != after.ru_nivcsw;
}

/* Exchanges that still go to sleep at once, because others wanted the processor lately: to stay
 * awake would only keep them from the work that is waited for. */
static atomic_uint crowded;

/* The same of tries, because replies take longer than it is worth to stay awake. */
static atomic_uint hopeless;

static bool is_one_of(atomic_uint *counted)
{
    unsigned left = atomic_load_explicit(counted, memory_order_relaxed);
    if (left)
        atomic_store_explicit(counted, left - 1, memory_order_relaxed);
    return left > 0;
}

/* Until `*awake_ns` the thread does not sleep, unless others want its processor; afterwards it
 * sleeps until `deadline_ns`, or where that is 0 gives up. */
static int receive_some(int fd, struct reply *reply, size_t capacity, int64_t *awake_ns,
                        int64_t deadline_ns)
{
    for (;;) {
        ssize_t n = recv(fd, reply->bytes + reply->size, capacity - reply->size, MSG_DONTWAIT);
        if (n > 0) {
            reply->size += (size_t)n;
            return 0;
        }
        if (n == 0)
            return ECONNRESET;
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (now_ns() < *awake_ns) {
                if (yielded()) {
                    atomic_store_explicit(&crowded, CROWDED_EXCHANGES, memory_order_relaxed);
                    *awake_ns = 0;
                }
                continue;
            }
            int status = deadline_ns ? wait_for(fd, POLLIN, deadline_ns) : ETIMEDOUT;
            if (status)
                return status;
        } else if (errno != EINTR) {
            return errno;
        }
    }
}

/* Steps `end` over the replies that are whole. Returns the size of the first that is not, 0 where
 * that cannot be known, -1 if it is none. */
static int64_t skip_whole(const struct reply *reply, size_t *end, size_t *left)
{
    int64_t size = 0;
    while (*left) {
        size = reply_size(reply->bytes + *end, reply->size - *end);
        if (size > MAX_REPLIES - (int64_t)*end)
            return -1;
        if (size <= 0 || (size_t)size > reply->size - *end)
            break;
        *end += (size_t)size;
        if (memcmp(reply->bytes + *end - 2, "\r\n", 2))
            return -1;
        --*left;
    }
    return size;
}

static int make_room(struct reply *reply, size_t *capacity, size_t wanted)
{
    if (reply->size < *capacity && wanted <= *capacity)
        return 0;
    size_t larger = *capacity ? 2 * *capacity : FIRST_BUFFER;
    if (wanted > larger)
        larger = wanted;
    char *grown = realloc(reply->bytes, larger);
    if (!grown)
        return ENOMEM;
    reply->bytes = grown;
    *capacity = larger;
    return 0;
}

/* As `receive_some`, so many whole replies. */
static int receive(int fd, size_t replies, int64_t awake_ns, int64_t deadline_ns,
                   struct reply *reply)
{
    size_t capacity = 0, end = 0;
    int64_t trying_ns = awake_ns;
    for (;;) {
        int64_t wanted = skip_whole(reply, &end, &replies);
        if (wanted < 0 || (!replies && end != reply->size))
            return EPROTO;
        if (!replies)
            return 0;
        if (!deadline_ns && reply->size && now_ns() >= trying_ns)
            return ETIMEDOUT;
        int status = make_room(reply, &capacity, wanted ? end + (size_t)wanted : 0);
        if (status == 0)
            status = receive_some(fd, reply, capacity, &awake_ns, deadline_ns);
        if (status)
            return status;
    }
}

int exchange(int fd, const char *request, size_t request_size, size_t replies,
             int64_t deadline_ns, struct reply *reply)
{
    *reply = (struct reply){NULL, 0};
    int status = send_all(fd, request, request_size, deadline_ns);
    int64_t awake_ns = is_one_of(&crowded) ? 0 : now_ns() + AWAKE_NS;
    if (awake_ns > deadline_ns)
        awake_ns = deadline_ns;
    return status ? status : receive(fd, replies, awake_ns, deadline_ns, reply);
}

int try_exchange(int fd, const char *request, size_t request_size, size_t replies,
                 struct reply *reply, size_t *sent)
{
    *reply = (struct reply){NULL, 0};
    ssize_t n = send(fd, request, request_size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
        return errno;
    *sent = n < 0 ? 0 : (size_t)n;
    if (*sent < request_size)
        return ETIMEDOUT;
    bool rests = is_one_of(&crowded) | is_one_of(&hopeless);
    int status = receive(fd, replies, rests ? 0 : now_ns() + AWAKE_NS, 0, reply);
    if (status == ETIMEDOUT && !rests)
        atomic_store_explicit(&hopeless, HOPELESS_TRIES, memory_order_relaxed);
    return status;
}

int skip_replies(const struct reply *reply, size_t *end, size_t *left)
{
    return skip_whole(reply, end, left) < 0 || (!*left && *end != reply->size) ? EPROTO : 0;
}

size_t next_reply(const char *data, size_t size, const char **value, int64_t *value_size)
{
    int64_t whole = reply_size(data, size);
    if (whole <= 0 || (size_t)whole > size)
        return 0;
    *value = NULL;
    *value_size = data[0] == '$' ? -1 : -2;
    if (data[0] == '$' && data[1] != '-') {
        *value = (const char *)memchr(data, '\n', size) + 1;
        *value_size = whole - 2 - (*value - data);
    }
    return (size_t)whole;
}
