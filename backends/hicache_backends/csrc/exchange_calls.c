#include "python.h"

#include "exchange.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

PyObject *exchange_error(int status)
{
    PyObject *type = status == ETIMEDOUT ? PyExc_TimeoutError : PyExc_ConnectionError;
    if (status == ENOMEM)
        return PyErr_NoMemory();
    const char *text = status == ETIMEDOUT    ? "no whole reply by the deadline"
                       : status == ECONNRESET ? "the connection was closed"
                       : status == EPROTO     ? "not the RESP2 replies that were asked for"
                                              : strerror(status);
    PyErr_SetString(type, text);
    return NULL;
}

PyObject *exchange_py(PyObject *self, PyObject *args)
{
    (void)self;
    int fd, status;
    PyObject *request;
    long long deadline_ns;
    Py_ssize_t replies = 1;
    struct reply reply;
    if (!PyArg_ParseTuple(args, "iSL|n:exchange", &fd, &request, &deadline_ns, &replies))
        return NULL;
    if (replies < 1)
        return PyErr_Format(PyExc_ValueError, "%zd replies", replies);
    const char *bytes = PyBytes_AsString(request);
    size_t size = (size_t)PyBytes_Size(request);
    Py_BEGIN_ALLOW_THREADS
    status = exchange(fd, bytes, size, (size_t)replies, deadline_ns, &reply);
    Py_END_ALLOW_THREADS
    PyObject *result = status ? exchange_error(status)
                              : PyBytes_FromStringAndSize(reply.bytes, (Py_ssize_t)reply.size);
    free(reply.bytes);
    return result;
}

PyObject *try_exchange_py(PyObject *self, PyObject *args)
{
    (void)self;
    int fd, status;
    PyObject *request;
    Py_ssize_t replies;
    struct reply reply;
    size_t sent = 0;
    if (!PyArg_ParseTuple(args, "iSn:try_exchange", &fd, &request, &replies))
        return NULL;
    if (replies < 1)
        return PyErr_Format(PyExc_ValueError, "%zd replies", replies);
    const char *bytes = PyBytes_AsString(request);
    size_t size = (size_t)PyBytes_Size(request);
    Py_BEGIN_ALLOW_THREADS
    status = try_exchange(fd, bytes, size, (size_t)replies, &reply, &sent);
    Py_END_ALLOW_THREADS
    PyObject *result = NULL;
    if (status && status != ETIMEDOUT)
        exchange_error(status);
    else
        result = Py_BuildValue("ny#O", (Py_ssize_t)sent, reply.bytes ? reply.bytes : "",
                               (Py_ssize_t)reply.size, status ? Py_False : Py_True);
    free(reply.bytes);
    return result;
}

PyObject *skip_replies_py(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *raw;
    Py_ssize_t from, wanted;
    if (!PyArg_ParseTuple(args, "Ynn:skip_replies", &raw, &from, &wanted))
        return NULL;
    struct reply reply = {PyByteArray_AsString(raw), (size_t)PyByteArray_Size(raw)};
    if (from < 0 || (size_t)from > reply.size || wanted < 0)
        return PyErr_Format(PyExc_ValueError, "no %zd replies from %zd on", wanted, from);
    size_t end = (size_t)from, left = (size_t)wanted;
    int status = skip_replies(&reply, &end, &left);
    return status ? exchange_error(status)
                  : Py_BuildValue("nn", (Py_ssize_t)end, (Py_ssize_t)left);
}
