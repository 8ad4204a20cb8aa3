/* The ioctls of 3FS. */
#include "daemon.h"

#include <errno.h>
#include <stdio.h>
#include <sys/ioctl.h>

enum { MOST_HOLES = 1000, CLUSTER_BYTES = 32 };

struct punch_holes {
    int32_t count;
    uint64_t flags, from[MOST_HOLES], to[MOST_HOLES];
};

#define GET_CLUSTER _IOR('h', 0, char[CLUSTER_BYTES])
#define GET_MAGIC _IOR('h', 2, uint32_t)
#define GET_VERSION _IOR('h', 3, uint32_t)
#define PUNCH_HOLES _IOW('h', 13, struct punch_holes)
static const uint32_t magic = 0x8f3f5fff;

static int punch(struct call *call, const struct punch_holes *holes)
{
    struct node *node = node_of(call->head.nodeid);
    int error = refuse_change();
    if (holes->count < 0 || holes->count > MOST_HOLES)
        return EINVAL;
    for (int i = 0; i < holes->count && !error; i++)
        error = chunks_punch(node->io_fd, node->id, holes->from[i], holes->to[i]);
    return error ? error : answer_ioctl(call, NULL, 0);
}

int on_ioctl(struct call *call)
{
    const struct fuse_ioctl_in *in = call->in;
    char cluster[CLUSTER_BYTES] = {0};
    uint32_t version = 1;
    switch (in->cmd) {
    case GET_MAGIC: return answer_ioctl(call, &magic, sizeof magic);
    case GET_VERSION: return answer_ioctl(call, &version, sizeof version);
    case GET_CLUSTER:
        snprintf(cluster, sizeof cluster, "%s", options.cluster);
        return answer_ioctl(call, cluster, sizeof cluster);
    case PUNCH_HOLES: return punch(call, (const void *)(in + 1));
    default: return EINVAL;
    }
}
