/* One or more requests and their replies over a stream socket, in RESP2 (the Redis protocol). */
#ifndef HICACHE_EXCHANGE_H
#define HICACHE_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>

struct reply {
    char *bytes; /* malloc'd; the caller frees it, whatever was returned */
    size_t size;
};

/* Sends the request and reads `replies` whole replies by `deadline_ns` (CLOCK_MONOTONIC).
 * Returns 0, or an errno: ETIMEDOUT, ECONNRESET (closed), EPROTO (not such replies, or bytes
 * after them), ENOMEM, or what a system call said. */
int exchange(int fd, const char *request, size_t request_size, size_t replies,
             int64_t deadline_ns, struct reply *reply);

/* The part of an exchange that is done without going to sleep, within 80 µs. Returns ETIMEDOUT
 * where more is to come: then `sent` bytes of the request are on their way, and `reply` has what
 * came. */
int try_exchange(int fd, const char *request, size_t request_size, size_t replies,
                 struct reply *reply, size_t *sent);

/* Steps `end` over the replies that are whole, of the `left` that are waited for. Returns 0, or
 * EPROTO as `exchange`. */
int skip_replies(const struct reply *reply, size_t *end, size_t *left);

/* The bytes that the first reply of `data` takes, 0 if it is not whole. Sets `value` and its size
 * if it is a bulk string; else the size is -1 for null, -2 for another kind. */
size_t next_reply(const char *data, size_t size, const char **value, int64_t *value_size);

#endif
