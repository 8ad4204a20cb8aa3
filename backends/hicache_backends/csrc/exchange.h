/* One request and its reply over a stream socket, in RESP2 (the Redis protocol). */
#ifndef HICACHE_EXCHANGE_H
#define HICACHE_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>

struct reply {
    char *bytes; /* malloc'd; the caller frees it, whatever was returned */
    size_t size;
};

/* Sends the request and reads one whole reply by `deadline_ns` (CLOCK_MONOTONIC).
 * Returns 0, or an errno: ETIMEDOUT, ECONNRESET (closed), EPROTO (not such a reply, or bytes
 * after it), ENOMEM, or what a system call said. */
int exchange(int fd, const char *request, size_t request_size, int64_t deadline_ns,
             struct reply *reply);

#endif
