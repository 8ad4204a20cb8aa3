/* Packed arguments of the calls that take whole batches; each sets an exception where it fails. */
#ifndef HICACHE_ARGUMENTS_H
#define HICACHE_ARGUMENTS_H

#include "python.h"

#include "records.h"
#include "transfer.h"

struct transfer_arguments {
    PyObject *fds, *offsets, *iov, *digests;
    Py_ssize_t pieces, max_bytes;
    long long deadline_ns;
    int threads;
};

struct record_arguments {
    PyObject *fds, *offsets, *was_used, *records;
    PyObject *runs; /* None, or a tuple: packed fds, offsets and iovs */
};

/* Points `t` to the arrays; 0, or -1. */
int check_transfer(const struct transfer_arguments *a, struct transfer *t);

/* A tuple of two new bytearrays of 8 bytes a page, to which `t` then points. */
PyObject *make_results(struct transfer *t);

/* Points `r`, all zeros, to the arrays, and to a copy of the records: while the GIL is away, the
 * bytearray is not ours. 0, or -1. Free with `free_records` in either case. */
int take_records(const struct record_arguments *a, const struct transfer *t, struct records *r);

/* Gives the filled-in records to the bytearray that they came from. */
void give_records(const struct record_arguments *a, const struct transfer *t,
                  const struct records *r);

/* The result, or MemoryError instead of it where `status` is below 0. */
PyObject *or_no_memory(PyObject *result, int status);

#endif
