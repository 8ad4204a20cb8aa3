/* The inodes that the kernel knows, by the inode number of the backing file. */
#include "daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUCKETS = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct node *buckets[BUCKETS];
static struct node root = {.id = FUSE_ROOT_ID, .io_fd = -1, .lookups = 1};
static dev_t device;

void nodes_begin(void)
{
    struct stat found;
    root.path_fd = open(options.backing, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root.path_fd < 0 || fstat(root.path_fd, &found))
        die("%s: %s", options.backing, strerror(errno));
    device = found.st_dev;
    buckets[root.id % BUCKETS] = &root;
}

static struct node **find(uint64_t id)
{
    struct node **at = &buckets[id % BUCKETS];
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

/* The kernel asks only about nodes that it has not forgotten, so that they stay. */
struct node *node_of(uint64_t id)
{
    pthread_mutex_lock(&lock);
    struct node *node = *find(id);
    pthread_mutex_unlock(&lock);
    if (!node)
        die("the kernel asks about the unknown node %llu", (unsigned long long)id);
    return node;
}

int node_look(struct node *parent, const char *name, struct node **node, struct stat *found)
{
    int fd = openat(parent->path_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno;
    if (fstat(fd, found) || found->st_dev != device) {
        close(fd);
        return EXDEV;
    }
    pthread_mutex_lock(&lock);
    struct node **at = find(found->st_ino);
    if (*at) {
        close(fd);
    } else {
        *at = calloc(1, sizeof **at);
        **at = (struct node){.id = found->st_ino, .path_fd = fd, .io_fd = -1};
    }
    *node = *at;
    (*node)->lookups++;
    pthread_mutex_unlock(&lock);
    return 0;
}

static void let_go(struct node *node)
{
    if (node->opens + node->pins == 0 && node->io_fd >= 0) {
        close(node->io_fd);
        node->io_fd = -1;
    }
    if (node->opens + node->pins == 0 && !node->lookups) {
        *find(node->id) = node->next;
        close(node->path_fd);
        free(node);
    }
}

void node_forget(uint64_t id, uint64_t lookups)
{
    pthread_mutex_lock(&lock);
    struct node *node = *find(id);
    if (node && node != &root) {
        node->lookups -= lookups < node->lookups ? lookups : node->lookups;
        let_go(node);
    }
    pthread_mutex_unlock(&lock);
}

int node_open(struct node *node, bool writes)
{
    int error = 0;
    pthread_mutex_lock(&lock);
    if (node->io_fd < 0) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", node->path_fd);
        node->io_fd = open(path, O_RDWR | O_CLOEXEC);
        error = node->io_fd < 0 ? errno : 0;
    }
    if (!error) {
        node->opens++;
        node->writers += writes;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

void node_close(struct node *node, bool writes)
{
    pthread_mutex_lock(&lock);
    node->opens--;
    node->writers -= writes;
    let_go(node);
    pthread_mutex_unlock(&lock);
}

struct node *node_pin(uint64_t id, bool writes)
{
    pthread_mutex_lock(&lock);
    struct node *node = *find(id);
    if (node && (writes ? node->writers : node->opens))
        node->pins++;
    else
        node = NULL;
    pthread_mutex_unlock(&lock);
    return node;
}

void node_unpin(struct node *node)
{
    pthread_mutex_lock(&lock);
    node->pins--;
    let_go(node);
    pthread_mutex_unlock(&lock);
}
