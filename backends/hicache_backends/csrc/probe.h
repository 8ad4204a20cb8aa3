/* A registry lookup by plain HGETs, for which a server works half as long as for a script; the
 * script answers where they do not suffice. What is kept in the server: kvmanager/keys.py and
 * kvmanager/scripts/entry.lua. */
#ifndef HICACHE_PROBE_H
#define HICACHE_PROBE_H

#include "exchange.h"

#include <stdbool.h>

struct span {
    const char *bytes;
    size_t size;
};

/* How the pages of some media are asked for. */
struct route {
    size_t media;
    struct span prefixes;       /* of the media's keys, all equally long: up to the bucket */
    struct span buckets;        /* of each medium, 4 bytes, little endian */
    struct span tail;           /* commands that follow the HGETs, `media` + 1 */
    struct span expected;       /* their replies, if all is as this route supposes */
    struct span before, behind; /* the script's call, up to the digests and after them */
};

struct probe {
    struct route route;
    size_t count;
    char *digests; /* 16 bytes each */
    bool why;      /* ask the script for the reason of a miss */
    uint32_t now, interval; /* 100 ms */
};

struct probed {
    struct reply reply, script;
    struct span *locations; /* malloc'd: of the pages from the start that were found */
    size_t found;
    size_t tail_at; /* of the tail's replies in `reply` */
    bool sufficient; /* else `script` has the script's reply */
};

/* The HGETs and what follows them, malloc'd; NULL without memory for it. */
char *pages_request(const struct probe *probe, size_t *size);

/* What the replies in `probed` say: the nearest copy of each page, up to the first that is nowhere.
 * Returns 0, ENOMEM, or EPROTO for fewer replies; the caller frees the locations either way. */
int read_pages(const struct probe *probe, struct probed *probed);

/* Returns 0 or an errno as `exchange` does; the caller frees what `probed` holds either way. */
int run_probe(int fd, const struct probe *probe, int64_t deadline_ns, struct probed *probed);

#endif
