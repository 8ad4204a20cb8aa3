#include "plan.h"

#include <stdlib.h>

static int compare_places(const void *left, const void *right)
{
    const struct place *a = left, *b = right;
    if (a->fd != b->fd)
        return a->fd < b->fd ? -1 : 1;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

void sort_places(struct place *places, size_t count)
{
    for (size_t i = 1; i < count; i++)
        if (compare_places(&places[i - 1], &places[i]) > 0) {
            qsort(places, count, sizeof *places, compare_places);
            return;
        }
}

size_t neighbours(const struct place *places, size_t count, uint64_t max_bytes)
{
    uint64_t bytes = places->bytes;
    size_t n = 1;
    for (; n < count; n++) {
        const struct place *last = &places[n - 1], *next = &places[n];
        bytes += next->bytes;
        if (next->fd != last->fd || bytes > max_bytes ||
            next->offset - last->offset != (int64_t)last->bytes)
            break;
    }
    return n;
}

static int compare_runs(const void *left, const void *right)
{
    const struct run *a = left, *b = right;
    return a->first_index < b->first_index ? -1 : a->first_index > b->first_index;
}

size_t plan_runs(struct place *places, size_t count, uint64_t max_bytes, struct run *runs)
{
    size_t n = 0;
    sort_places(places, count);
    for (size_t i = 0; i < count;) {
        struct run *run = &runs[n++];
        *run = (struct run){&places[i], neighbours(&places[i], count - i, max_bytes), SIZE_MAX};
        for (size_t k = 0; k < run->count; k++, i++)
            if (places[i].index < run->first_index)
                run->first_index = places[i].index;
    }
    qsort(runs, n, sizeof *runs, compare_runs);
    return n;
}
