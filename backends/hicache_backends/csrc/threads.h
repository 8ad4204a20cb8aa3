/* Threads that live for one call. */
#ifndef HICACHE_THREADS_H
#define HICACHE_THREADS_H

#include <stddef.h>

/* Runs `work(argument)` in this thread and in up to `count - 1` others, and returns when all have
 * ended. Where the system has no thread left there are fewer: `work` shares out what is to be done. */
void run_on_threads(size_t count, void *(*work)(void *), void *argument);

#endif
