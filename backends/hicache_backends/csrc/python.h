/* The stable ABI of Python 3.10 on, and the calls that take whole batches. */
#ifndef HICACHE_PYTHON_H
#define HICACHE_PYTHON_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#define KEEP_GIL_BYTES (1 << 20) /* memory work up to this takes less than a hand-off of the GIL */

PyObject *read_many(PyObject *self, PyObject *args);
PyObject *write_many(PyObject *self, PyObject *args);
PyObject *checksum_many(PyObject *self, PyObject *args);
PyObject *copy_many(PyObject *self, PyObject *args);
PyObject *exchange_py(PyObject *self, PyObject *args);
PyObject *try_exchange_py(PyObject *self, PyObject *args);
PyObject *skip_replies_py(PyObject *self, PyObject *args);
PyObject *lookup(PyObject *self, PyObject *args);
PyObject *pages_request_py(PyObject *self, PyObject *args);
PyObject *read_pages_py(PyObject *self, PyObject *args);
PyObject *ring_open_py(PyObject *self, PyObject *args);
PyObject *ring_read_py(PyObject *self, PyObject *args);
PyObject *ring_write_py(PyObject *self, PyObject *args);
PyObject *ring_facts_py(PyObject *self, PyObject *capsule);
PyObject *ring_in_doubt_py(PyObject *self, PyObject *capsule);
PyObject *ring_may_touch_py(PyObject *self, PyObject *args);
PyObject *ring_stop_py(PyObject *self, PyObject *capsule);

PyObject *exchange_error(int status); /* raises what an exchange's errno means */

#endif
