#include "arguments.h"

#include "crc32c.h"
#include "memory.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(void *) == 8 && sizeof(struct iovec) == 16, "a 64-bit system is needed");

#define MAX_PIECE_BYTES ((size_t)1 << 40)

/* --- arguments ----------------------------------------------------------------------------- */

/* The bytes of a packed array of `count` items; NULL with ValueError set for another length. */
static const void *packed(PyObject *bytes, const char *name, size_t count, size_t item_bytes)
{
    size_t size = (size_t)PyBytes_Size(bytes);
    if (size % item_bytes || size / item_bytes != count) {
        PyErr_Format(PyExc_ValueError, "%s: %zu bytes, not %zu items of %zu", name, size, count,
                     item_bytes);
        return NULL;
    }
    return PyBytes_AsString(bytes);
}

/* Pieces of `count` pages, each an address and a size; NULL with an exception set if not. */
static const struct iovec *packed_pieces(PyObject *bytes, const char *name, size_t count,
                                         Py_ssize_t pieces)
{
    if (pieces < 1 || (size_t)pieces > (SIZE_MAX >> 8) / (count + 1)) {
        PyErr_Format(PyExc_ValueError, "%s: %zd pieces a page", name, pieces);
        return NULL;
    }
    const struct iovec *iov = packed(bytes, name, count * (size_t)pieces, sizeof *iov);
    for (size_t i = 0; iov && i < count * (size_t)pieces; i++)
        if (!iov[i].iov_base || !iov[i].iov_len || iov[i].iov_len > MAX_PIECE_BYTES) {
            PyErr_Format(PyExc_ValueError, "%s: piece %zu has address %p and %zu bytes", name, i,
                         iov[i].iov_base, iov[i].iov_len);
            return NULL;
        }
    return iov;
}

static uint64_t bytes_of(const struct iovec *iov, size_t count)
{
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++)
        total += iov[i].iov_len;
    return total;
}

static int check_offset(const char *name, size_t item, int64_t offset)
{
    if (offset >= 0 && offset <= INT64_MAX / 2)
        return 0;
    PyErr_Format(PyExc_ValueError, "%s: item %zu is %lld", name, item, (long long)offset);
    return -1;
}

static int check_threads(int threads)
{
    if (threads >= 1)
        return 0;
    PyErr_Format(PyExc_ValueError, "threads %d, at least 1", threads);
    return -1;
}

int check_transfer(const struct transfer_arguments *a, struct transfer *t)
{
    t->count = (size_t)PyBytes_Size(a->fds) / sizeof(int32_t);
    if (a->threads < 1 || a->max_bytes < 4096) {
        PyErr_Format(PyExc_ValueError, "threads %d, at least 1; max_bytes %zd, at least 4096",
                     a->threads, a->max_bytes);
        return -1;
    }
    t->pieces = (size_t)a->pieces;
    t->deadline_ns = a->deadline_ns;
    t->max_bytes = (size_t)a->max_bytes / 4096 * 4096; /* direct I/O keeps its alignment */
    t->threads = (unsigned)a->threads;
    if (!(t->fds = packed(a->fds, "fds", t->count, sizeof *t->fds)) ||
        !(t->offsets = packed(a->offsets, "offsets", t->count, sizeof *t->offsets)) ||
        !(t->iov = packed_pieces(a->iov, "iov", t->count, a->pieces)) ||
        !(t->digests = packed(a->digests, "digests", t->count, DIGEST_BYTES)))
        return -1;
    for (size_t i = 0; i < t->count; i++)
        if (check_offset("offsets", i, t->offsets[i]) < 0)
            return -1;
    return 0;
}

PyObject *make_results(struct transfer *t)
{
    PyObject *results = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(8 * t->count));
    PyObject *sums = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(8 * t->count));
    PyObject *pair = results && sums ? PyTuple_Pack(2, results, sums) : NULL;
    if (pair) {
        t->results = (int64_t *)PyByteArray_AsString(results);
        t->checksums = (uint64_t *)PyByteArray_AsString(sums);
        memset(t->results, 0, 8 * t->count);
        memset(t->checksums, 0, 8 * t->count);
    }
    Py_XDECREF(results);
    Py_XDECREF(sums);
    return pair;
}

/* Every record that there is lies in one of the runs. */
static int find_runs(const struct transfer *t, struct records *r)
{
    for (size_t i = 0; i < t->count; i++) {
        size_t found = 0;
        for (size_t k = 0; r->fds[i] >= 0 && k < r->run_count; k++) {
            const struct record_run *run = &r->runs[k];
            if (run->fd == r->fds[i] && run->bytes >= RECORD_BYTES &&
                r->offsets[i] >= run->offset &&
                (uint64_t)(r->offsets[i] - run->offset) <= run->bytes - RECORD_BYTES) {
                r->run_of[i] = k;
                found++;
            }
        }
        if (r->fds[i] >= 0 && found != 1) {
            PyErr_Format(PyExc_ValueError, "runs: record %zu lies in %zu of them", i, found);
            return -1;
        }
    }
    return 0;
}

/* The arrays of `runs`, checked; how many there are, or -1. */
static Py_ssize_t check_runs(PyObject *runs, const int32_t **fds, const int64_t **offsets,
                             const struct iovec **iov)
{
    PyObject *packed_fds, *packed_offsets, *packed_iov;
    if (!PyTuple_Check(runs)) {
        PyErr_SetString(PyExc_TypeError, "runs: None, or a tuple of three packed arrays");
        return -1;
    }
    if (!PyArg_ParseTuple(runs, "SSS:runs", &packed_fds, &packed_offsets, &packed_iov))
        return -1;
    size_t count = (size_t)PyBytes_Size(packed_fds) / sizeof **fds;
    if (!(*fds = packed(packed_fds, "run_fds", count, sizeof **fds)) ||
        !(*offsets = packed(packed_offsets, "run_offsets", count, sizeof **offsets)) ||
        !(*iov = packed_pieces(packed_iov, "run_iov", count, 1)))
        return -1;
    for (size_t i = 0; i < count; i++)
        if (check_offset("run_offsets", i, (*offsets)[i]) < 0)
            return -1;
    return (Py_ssize_t)count;
}

int take_records(const struct record_arguments *a, const struct transfer *t, struct records *r)
{
    const int32_t *fds = NULL;
    const int64_t *offsets = NULL;
    const struct iovec *iov = NULL;
    Py_ssize_t runs = 0;
    if (!(r->fds = packed(a->fds, "record_fds", t->count, sizeof *r->fds)) ||
        !(r->offsets = packed(a->offsets, "record_offsets", t->count, sizeof *r->offsets)) ||
        !(r->was_used = packed(a->was_used, "was_used", t->count, 1)))
        return -1;
    size_t size = t->count * RECORD_BYTES;
    if ((size_t)PyByteArray_Size(a->records) != size) {
        PyErr_Format(PyExc_ValueError, "records: not %d bytes a page", RECORD_BYTES);
        return -1;
    }
    for (size_t i = 0; i < t->count; i++)
        if (r->fds[i] >= 0 && check_offset("record_offsets", i, r->offsets[i]) < 0)
            return -1;
    r->given = a->runs != Py_None;
    if (r->given && (runs = check_runs(a->runs, &fds, &offsets, &iov)) < 0)
        return -1;
    if (alloc_records(r, t->count, (size_t)runs) < 0) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(r->bytes, PyByteArray_AsString(a->records), size);
    for (; r->run_count < (size_t)runs; r->run_count++)
        r->runs[r->run_count] =
            (struct record_run){fds[r->run_count], offsets[r->run_count],
                                iov[r->run_count].iov_base, iov[r->run_count].iov_len, false};
    return r->given ? find_runs(t, r) : 0;
}

void give_records(const struct record_arguments *a, const struct transfer *t,
                  const struct records *r)
{
    size_t size = t->count * RECORD_BYTES;
    if ((size_t)PyByteArray_Size(a->records) == size)
        memcpy(PyByteArray_AsString(a->records), r->bytes, size);
}

PyObject *or_no_memory(PyObject *result, int status)
{
    if (status < 0) {
        Py_XDECREF(result);
        return PyErr_NoMemory();
    }
    return result;
}

/* --- functions ----------------------------------------------------------------------------- */

PyObject *read_many(PyObject *self, PyObject *args)
{
    (void)self;
    struct transfer_arguments a;
    struct transfer t = {.writing = false};
    Py_ssize_t keep_gil_bytes;
    if (!PyArg_ParseTuple(args, "SSSnSLinn:read_many", &a.fds, &a.offsets, &a.iov, &a.pieces,
                          &a.digests, &a.deadline_ns, &a.threads, &a.max_bytes, &keep_gil_bytes) ||
        check_transfer(&a, &t) < 0)
        return NULL;
    PyObject *results = make_results(&t);
    if (!results)
        return NULL;
    if (keep_gil_bytes > 0 && bytes_of(t.iov, t.count * t.pieces) <= (uint64_t)keep_gil_bytes &&
        read_cached_pages(&t))
        return results;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = move_pages(&t);
    Py_END_ALLOW_THREADS
    return or_no_memory(results, status);
}

PyObject *write_many(PyObject *self, PyObject *args)
{
    (void)self;
    struct transfer_arguments a;
    struct record_arguments b;
    struct transfer t = {.writing = true};
    struct records r = {0};
    PyObject *results = NULL;
    int status = 0;
    if (PyArg_ParseTuple(args, "SSSnSLinSSSYO:write_many", &a.fds, &a.offsets, &a.iov, &a.pieces,
                         &a.digests, &a.deadline_ns, &a.threads, &a.max_bytes, &b.fds, &b.offsets,
                         &b.was_used, &b.records, &b.runs) &&
        check_transfer(&a, &t) == 0 && take_records(&b, &t, &r) == 0)
        results = make_results(&t);
    if (results) {
        Py_BEGIN_ALLOW_THREADS
        status = write_pages(&t, &r);
        Py_END_ALLOW_THREADS
        if (status == 0)
            give_records(&b, &t, &r);
    }
    free_records(&r);
    return or_no_memory(results, status);
}

/* Does the work; the GIL is kept where that takes less than a hand-off. */
static void work_in_call(const struct memory_work *work, int threads)
{
    if (bytes_of(work->from, work->count * work->from_pieces) <= KEEP_GIL_BYTES) {
        work_on_memory(work, 1);
    } else {
        Py_BEGIN_ALLOW_THREADS
        work_on_memory(work, (size_t)threads);
        Py_END_ALLOW_THREADS
    }
}

PyObject *checksum_many(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *iov, *digests;
    Py_ssize_t pieces;
    int threads;
    if (!PyArg_ParseTuple(args, "SnSi:checksum_many", &iov, &pieces, &digests, &threads))
        return NULL;
    struct memory_work work = {.count = (size_t)PyBytes_Size(digests) / DIGEST_BYTES,
                               .from_pieces = (size_t)pieces};
    if (check_threads(threads) < 0 ||
        !(work.digests = packed(digests, "digests", work.count, DIGEST_BYTES)) ||
        !(work.from = packed_pieces(iov, "iov", work.count, pieces)))
        return NULL;
    PyObject *sums = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(8 * work.count));
    if (sums) {
        work.checksums = (uint64_t *)PyByteArray_AsString(sums);
        work_in_call(&work, threads);
    }
    return sums;
}

/* Both sides of each page have the same number of bytes; 0, or -1. */
static int check_sides(const struct memory_work *work)
{
    for (size_t i = 0; i < work->count; i++)
        if (bytes_of(work->from + i * work->from_pieces, work->from_pieces) !=
            bytes_of(work->to + i * work->to_pieces, work->to_pieces)) {
            PyErr_Format(PyExc_ValueError, "page %zu has another size on each side", i);
            return -1;
        }
    return 0;
}

PyObject *copy_many(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *from, *to, *digests;
    Py_ssize_t count, from_pieces, to_pieces;
    int threads;
    if (!PyArg_ParseTuple(args, "nSnSnSi:copy_many", &count, &from, &from_pieces, &to, &to_pieces,
                          &digests, &threads))
        return NULL;
    if (count < 0)
        return PyErr_Format(PyExc_ValueError, "count: %zd", count);
    struct memory_work work = {.count = (size_t)count,
                               .from_pieces = (size_t)from_pieces,
                               .to_pieces = (size_t)to_pieces};
    size_t summed = PyBytes_Size(digests) ? work.count : 0;
    if (check_threads(threads) < 0 ||
        !(work.digests = packed(digests, "digests", summed, DIGEST_BYTES)) ||
        !(work.from = packed_pieces(from, "from", work.count, from_pieces)) ||
        !(work.to = packed_pieces(to, "to", work.count, to_pieces)) || check_sides(&work) < 0)
        return NULL;
    PyObject *sums = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(8 * summed));
    if (sums) {
        work.checksums = summed ? (uint64_t *)PyByteArray_AsString(sums) : NULL;
        work_in_call(&work, threads);
    }
    return sums;
}
