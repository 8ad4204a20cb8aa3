#include "arguments.h"

#include "ring_batch.h"

#include <stdlib.h>
#include <string.h>

#define CAPSULE "hicache_backends.ring"
#define MAX_PADDED_BYTES (1ull << 40)

static struct ring *ring_of(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, CAPSULE);
}

static void forget(PyObject *capsule)
{
    struct ring *ring = ring_of(capsule);
    if (ring)
        ring_free(ring);
}

static int check_setup(const struct ring_setup *setup, unsigned long long shared_bytes)
{
    if (setup->entries < 1 || setup->entries > 1 << 20 ||
        ring_bytes(setup->entries) > shared_bytes || setup->burst < 1) {
        PyErr_Format(PyExc_ValueError, "%u entries in %llu bytes, bursts of %u", setup->entries,
                     shared_bytes, setup->burst);
        return -1;
    }
    if (setup->block_bytes < RECORD_BYTES ||
        setup->staging.bytes / setup->block_bytes < setup->entries) {
        PyErr_Format(PyExc_ValueError, "%u blocks of %llu bytes in %llu bytes", setup->entries,
                     (unsigned long long)setup->block_bytes,
                     (unsigned long long)setup->staging.bytes);
        return -1;
    }
    if (!setup->shared || !setup->submitted || !setup->staging.address) {
        PyErr_SetString(PyExc_ValueError, "an address is 0");
        return -1;
    }
    return 0;
}

PyObject *ring_open_py(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long shared, shared_bytes, submitted, staging, staging_bytes, start, block;
    PyObject *uuid;
    struct ring_setup setup;
    if (!PyArg_ParseTuple(args, "KKIIKKKKKSi:ring_open", &shared, &shared_bytes, &setup.entries,
                          &setup.burst, &submitted, &staging, &staging_bytes, &start, &block, &uuid,
                          &setup.alarm_fd))
        return NULL;
    if (PyBytes_Size(uuid) != UUID_BYTES)
        return PyErr_Format(PyExc_ValueError, "a uuid of %zd bytes", PyBytes_Size(uuid));
    setup.shared = (uint8_t *)(uintptr_t)shared;
    setup.submitted = (sem_t *)(uintptr_t)submitted;
    setup.staging = (struct iov_memory){.address = staging, .bytes = staging_bytes};
    memcpy(setup.staging.uuid, PyBytes_AsString(uuid), UUID_BYTES);
    setup.staging_start = start;
    setup.block_bytes = block;
    if (check_setup(&setup, shared_bytes) < 0)
        return NULL;
    struct ring *ring = ring_new(&setup);
    if (!ring)
        return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(ring, CAPSULE, forget);
    if (!capsule)
        ring_free(ring);
    return capsule;
}

/* The packed memories; -1 with ValueError set where they are none. */
static int take_memories(PyObject *packed, struct ring_batch *batch)
{
    size_t size = (size_t)PyBytes_Size(packed), each = sizeof *batch->memories;
    if (size % each) {
        PyErr_Format(PyExc_ValueError, "memories: %zu bytes, not items of %zu", size, each);
        return -1;
    }
    batch->memories = (const void *)PyBytes_AsString(packed);
    batch->memory_count = size / each;
    return 0;
}

/* 0, or -1 with an exception set. */
static int run_batch(struct ring_batch *batch)
{
    int status;
    if (!ring_enter(batch->ring)) {
        PyErr_SetString(PyExc_RuntimeError, "the ring is in use by another thread");
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    status = ring_move_pages(batch);
    Py_END_ALLOW_THREADS
    ring_leave(batch->ring);
    if (status < 0)
        PyErr_NoMemory();
    return status;
}

PyObject *ring_read_py(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *capsule, *memories;
    struct transfer_arguments a = {.max_bytes = 4096, .threads = 1};
    struct transfer t = {.writing = false};
    struct ring_batch batch = {.t = &t};
    unsigned long long device;
    if (!PyArg_ParseTuple(args, "OSSSnSLSK:ring_read", &capsule, &a.fds, &a.offsets, &a.iov,
                          &a.pieces, &a.digests, &a.deadline_ns, &memories, &device) ||
        !(batch.ring = ring_of(capsule)) || check_transfer(&a, &t) < 0 ||
        take_memories(memories, &batch) < 0)
        return NULL;
    batch.device = device;
    PyObject *results = make_results(&t);
    if (results && run_batch(&batch) < 0)
        Py_CLEAR(results);
    return results;
}

PyObject *ring_write_py(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *capsule, *memories, *results = NULL;
    struct transfer_arguments a = {.max_bytes = 4096, .threads = 1};
    struct record_arguments b;
    struct transfer t = {.writing = true};
    struct records r = {0};
    struct ring_batch batch = {.t = &t, .records = &r};
    unsigned long long device, padded_bytes;
    if (PyArg_ParseTuple(args, "OSSSnSLSKKSSSYO:ring_write", &capsule, &a.fds, &a.offsets, &a.iov,
                         &a.pieces, &a.digests, &a.deadline_ns, &memories, &device, &padded_bytes,
                         &b.fds, &b.offsets, &b.was_used, &b.records, &b.runs) &&
        (batch.ring = ring_of(capsule)) && check_transfer(&a, &t) == 0 &&
        take_memories(memories, &batch) == 0 && take_records(&b, &t, &r) == 0) {
        batch.device = device;
        batch.padded_bytes = padded_bytes;
        if (padded_bytes > MAX_PADDED_BYTES)
            PyErr_Format(PyExc_ValueError, "padded_bytes: %llu", padded_bytes);
        else
            results = make_results(&t);
    }
    if (results && run_batch(&batch) < 0)
        Py_CLEAR(results);
    if (results)
        give_records(&b, &t, &r);
    free_records(&r);
    return results;
}

static int add(PyObject *facts, const char *name, unsigned long long value)
{
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    int status = number ? PyDict_SetItemString(facts, name, number) : -1;
    Py_XDECREF(number);
    return status;
}

PyObject *ring_facts_py(PyObject *self, PyObject *capsule)
{
    (void)self;
    struct ring *ring = ring_of(capsule);
    if (!ring)
        return NULL;
    ring_reap_late(ring);
    struct ring_counts *counts = &ring->counts;
    PyObject *facts = PyDict_New();
    if (facts && (add(facts, "state", (unsigned long long)atomic_load(&ring->state)) < 0 ||
                  add(facts, "quarantined", atomic_load(&ring->quarantined)) < 0 ||
                  add(facts, "submitted", atomic_load(&counts->submitted)) < 0 ||
                  add(facts, "posts", atomic_load(&counts->posts)) < 0 ||
                  add(facts, "waits", atomic_load(&counts->waits)) < 0 ||
                  add(facts, "timed_out", atomic_load(&counts->timed_out)) < 0 ||
                  add(facts, "late", atomic_load(&counts->late)) < 0 ||
                  add(facts, "impossible", atomic_load(&counts->impossible)) < 0))
        Py_CLEAR(facts);
    return facts;
}

PyObject *ring_in_doubt_py(PyObject *self, PyObject *capsule)
{
    (void)self;
    struct ring *ring = ring_of(capsule);
    if (!ring)
        return NULL;
    struct ring_place *places = malloc(ring->setup.entries * sizeof *places);
    if (!places)
        return PyErr_NoMemory();
    size_t count = ring_in_doubt(ring, places);
    PyObject *packed = PyBytes_FromStringAndSize((const char *)places,
                                                 (Py_ssize_t)(count * sizeof *places));
    free(places);
    return packed;
}

PyObject *ring_may_touch_py(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *capsule;
    unsigned long long address, bytes;
    if (!PyArg_ParseTuple(args, "OKK:ring_may_touch", &capsule, &address, &bytes))
        return NULL;
    struct ring *ring = ring_of(capsule);
    return ring ? PyBool_FromLong(ring_may_touch(ring, address, bytes)) : NULL;
}

PyObject *ring_stop_py(PyObject *self, PyObject *capsule)
{
    (void)self;
    struct ring *ring = ring_of(capsule);
    if (!ring)
        return NULL;
    ring_stop(ring);
    Py_RETURN_NONE;
}
