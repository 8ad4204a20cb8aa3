/* hicache_backends._native: whole batches in one call that gives up the GIL at most once.
 *
 * Arrays arrive as packed bytes objects, whose lengths are checked here; only the addresses of
 * the pages' own memory are taken on trust. Results leave as bytearrays. The stable ABI of
 * Python 3.10 has no Py_buffer.
 */
#include "csrc/python.h"

#include "csrc/blake2b.h"
#include "csrc/crc32c.h"
#include "csrc/prefixes.h"
#include "csrc/records.h"

#include <stdlib.h>
#include <string.h>

#define KEEP_GIL_RECORDS (1 << 15)

static PyObject *digest_of(const struct blake2b *keyed, PyObject *key, Py_ssize_t max_key_bytes)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(key, &size); /* a TypeError unless a string */
    if (!text)
        return NULL;
    if (size < 1 || size > max_key_bytes)
        return PyErr_Format(PyExc_ValueError, "a key of %zd bytes", size);
    uint8_t digest[DIGEST_BYTES];
    blake2b_finish(keyed, (const uint8_t *)text, (size_t)size, digest);
    return PyBytes_FromStringAndSize((const char *)digest, DIGEST_BYTES);
}

static PyObject *page_digests(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *fingerprint, *keys;
    Py_ssize_t max_key_bytes;
    if (!PyArg_ParseTuple(args, "SOn:page_digests", &fingerprint, &keys, &max_key_bytes))
        return NULL;
    Py_ssize_t key_size = PyBytes_Size(fingerprint);
    if (key_size < 1 || key_size > BLAKE2B_MAX_KEY)
        return PyErr_Format(PyExc_ValueError, "a fingerprint of %zd bytes", key_size);
    PyObject *sequence = PySequence_Tuple(keys);
    if (!sequence)
        return NULL;
    struct blake2b keyed;
    blake2b_keyed(&keyed, (const uint8_t *)PyBytes_AsString(fingerprint), (size_t)key_size);
    Py_ssize_t count = PyTuple_Size(sequence);
    PyObject *digests = PyList_New(count);
    for (Py_ssize_t i = 0; digests && i < count; i++) {
        PyObject *digest = digest_of(&keyed, PyTuple_GetItem(sequence, i), max_key_bytes);
        if (!digest || PyList_SetItem(digests, i, digest) < 0)
            Py_CLEAR(digests);
    }
    Py_DECREF(sequence);
    return digests;
}

static PyObject *crc32c_py(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *data;
    unsigned int seed = 0;
    int implementation = 0;
    if (!PyArg_ParseTuple(args, "S|Ii:crc32c", &data, &seed, &implementation))
        return NULL;
    if (implementation < 0 || !crc32c_name((size_t)implementation))
        return PyErr_Format(PyExc_ValueError, "no implementation %d", implementation);
    size_t size = (size_t)PyBytes_Size(data);
    const char *bytes = PyBytes_AsString(data);
    uint32_t crc;
    if (size <= KEEP_GIL_BYTES) {
        crc = crc32c_by((size_t)implementation, seed, bytes, size);
    } else {
        Py_BEGIN_ALLOW_THREADS
        crc = crc32c_by((size_t)implementation, seed, bytes, size);
        Py_END_ALLOW_THREADS
    }
    return PyLong_FromUnsignedLong(crc);
}

static void check_records(const uint8_t *record, size_t count, char *valid)
{
    for (size_t i = 0; i < count; i++, record += RECORD_BYTES) {
        uint32_t size = 0, crc = 0;
        for (int byte = 3; byte >= 0; byte--) {
            size = size << 8 | record[RECORD_SIZE + byte];
            crc = crc << 8 | record[RECORD_CRC + byte];
        }
        valid[i] = size && crc == crc32c(0, record, RECORD_CRC);
    }
}

static PyObject *valid_records(PyObject *self, PyObject *args)
{
    (void)self;
    unsigned long long address;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "Kn:valid_records", &address, &count))
        return NULL;
    if (count < 0 || (count && !address))
        return PyErr_Format(PyExc_ValueError, "%zd records at address %llu", count, address);
    PyObject *result = PyByteArray_FromStringAndSize(NULL, count);
    if (!result)
        return NULL;
    char *valid = PyByteArray_AsString(result);
    const uint8_t *records = (const uint8_t *)(uintptr_t)address;
    if (count <= KEEP_GIL_RECORDS) {
        check_records(records, (size_t)count, valid);
    } else {
        Py_BEGIN_ALLOW_THREADS
        check_records(records, (size_t)count, valid);
        Py_END_ALLOW_THREADS
    }
    return result;
}

/* --- sets of digests ------------------------------------------------------------------------ */

#define DIGEST_BYTES 16

/* The set in a bytearray; 0 with ValueError set where its size is none of a set. */
static int prefixes_in(PyObject *table, struct prefixes *set)
{
    size_t cells = (size_t)PyByteArray_Size(table) / sizeof *set->cells;
    if (!cells || cells & (cells - 1)) {
        PyErr_Format(PyExc_ValueError, "table: %zu cells are no power of two", cells);
        return 0;
    }
    set->cells = (uint64_t *)PyByteArray_AsString(table);
    set->mask = cells - 1;
    return 1;
}

/* The digests of a packed bytes object; NULL with ValueError set where they would fill the set. */
static const char *packed_digests(PyObject *digests, struct prefixes set, size_t *count)
{
    size_t bytes = (size_t)PyBytes_Size(digests);
    *count = bytes / DIGEST_BYTES;
    if (bytes % DIGEST_BYTES || *count > set.mask) {
        PyErr_Format(PyExc_ValueError, "digests: %zu bytes", bytes);
        return NULL;
    }
    return PyBytes_AsString(digests);
}

static PyObject *change_prefixes(PyObject *args, const char *format,
                                 void (*change)(struct prefixes, const void *))
{
    PyObject *table, *digests;
    struct prefixes set;
    size_t count;
    const char *at;
    if (!PyArg_ParseTuple(args, format, &table, &digests) || !prefixes_in(table, &set) ||
        !(at = packed_digests(digests, set, &count)))
        return NULL;
    for (size_t i = 0; i < count; i++)
        change(set, at + i * DIGEST_BYTES);
    Py_RETURN_NONE;
}

static PyObject *prefixes_add_py(PyObject *self, PyObject *args)
{
    (void)self;
    return change_prefixes(args, "YS:prefixes_add", prefixes_add);
}

static PyObject *prefixes_remove_py(PyObject *self, PyObject *args)
{
    (void)self;
    return change_prefixes(args, "YS:prefixes_remove", prefixes_remove);
}

/* The bytes of an item of a list; NULL for what is no digest. */
static const char *digest_in(PyObject *list, Py_ssize_t i)
{
    PyObject *item = PyList_GetItem(list, i);
    return PyBytes_Check(item) && PyBytes_Size(item) == DIGEST_BYTES ? PyBytes_AsString(item) : NULL;
}

static PyObject *prefixes_find_py(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *table, *digests;
    struct prefixes set;
    if (!PyArg_ParseTuple(args, "YO!:prefixes_find", &table, &PyList_Type, &digests) ||
        !prefixes_in(table, &set))
        return NULL;
    Py_ssize_t count = PyList_Size(digests);
    for (Py_ssize_t i = 0; i < count; i++) {
        const char *digest = digest_in(digests, i);
        if (digest)
            prefixes_expect(set, digest);
    }
    PyObject *found = PyList_New(count);
    for (Py_ssize_t i = 0; found && i < count; i++) {
        const char *digest = digest_in(digests, i);
        PyList_SetItem(found, i, PyBool_FromLong(digest && prefixes_have(set, digest)));
    }
    return found;
}

/* --- the module ---------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"read_many", read_many, METH_VARARGS, "Read a batch of pages; see io/engine.py."},
    {"write_many", write_many, METH_VARARGS, "Write a batch of pages, then their records."},
    {"checksum_many", checksum_many, METH_VARARGS, "The checksum of each page in memory."},
    {"copy_many", copy_many, METH_VARARGS, "Copy pages between memory of other piece sizes."},
    {"page_digests", page_digests, METH_VARARGS, "BLAKE2b-128 of each key, keyed."},
    {"crc32c", crc32c_py, METH_VARARGS, "CRC-32C of bytes, going on from a seed."},
    {"valid_records", valid_records, METH_VARARGS, "Which of the 64-byte records are whole."},
    {"exchange", exchange_py, METH_VARARGS, "Send requests, receive their RESP2 replies."},
    {"try_exchange", try_exchange_py, METH_VARARGS, "The part of it that needs no sleep."},
    {"skip_replies", skip_replies_py, METH_VARARGS, "Step over whole RESP2 replies."},
    {"lookup", lookup, METH_VARARGS, "Look pages up; see csrc/probe.h."},
    {"pages_request", pages_request_py, METH_VARARGS, "What a lookup sends."},
    {"read_pages", read_pages_py, METH_VARARGS, "What the replies to it say."},
    {"prefixes_add", prefixes_add_py, METH_VARARGS, "Add packed digests to a set."},
    {"prefixes_remove", prefixes_remove_py, METH_VARARGS, "Take packed digests out of a set."},
    {"prefixes_find", prefixes_find_py, METH_VARARGS, "For each of a list: is it in the set?"},
    {"ring_open", ring_open_py, METH_VARARGS, "Our side of a registered 3FS ring."},
    {"ring_read", ring_read_py, METH_VARARGS, "As read_many, through a ring."},
    {"ring_write", ring_write_py, METH_VARARGS, "As write_many, through a ring."},
    {"ring_facts", ring_facts_py, METH_O, "State and counters of a ring."},
    {"ring_in_doubt", ring_in_doubt_py, METH_O, "Inode and offset of late I/Os, packed."},
    {"ring_may_touch", ring_may_touch_py, METH_VARARGS, "May a late I/O touch this memory?"},
    {"ring_stop", ring_stop_py, METH_O, "End the call in flight, let no other begin."},
    {NULL, NULL, 0, NULL},
};

static int fill_module(PyObject *module)
{
    crc32c_init();
    PyObject *names = PyList_New(0);
    for (size_t i = 0; names && crc32c_name(i); i++) {
        PyObject *name = PyUnicode_FromString(crc32c_name(i));
        if (!name || PyList_Append(names, name) < 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    PyObject *tuple = names ? PyList_AsTuple(names) : NULL;
    Py_XDECREF(names);
    if (!tuple || PyModule_AddObjectRef(module, "CRC32C_IMPLEMENTATIONS", tuple) < 0) {
        Py_XDECREF(tuple);
        return -1;
    }
    Py_DECREF(tuple);
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill_module}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "hicache_backends._native", .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void);

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
