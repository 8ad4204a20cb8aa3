#define _GNU_SOURCE
#include "threads.h"

#include <pthread.h>
#include <signal.h>

enum {
    MAX_THREADS = 64,
    STACK_BYTES = 256 << 10,
};

void run_on_threads(size_t count, void *(*work)(void *), void *argument)
{
    pthread_t threads[MAX_THREADS];
    size_t started = 0;
    if (count > 1) {
        sigset_t all, before;
        pthread_attr_t attributes;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before); /* signals stay with the threads that had them */
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, STACK_BYTES);
        while (started + 1 < count && started < MAX_THREADS &&
               pthread_create(&threads[started], &attributes, work, argument) == 0)
            started++;
        pthread_attr_destroy(&attributes);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    work(argument);
    while (started)
        pthread_join(threads[--started], NULL);
}
