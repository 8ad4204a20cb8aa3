#include "python.h"

#include "probe.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PREFIX = 128, ROUTE_PARTS = 6 };

/* The parts of a route, in the order of `struct route`; 0 with ValueError set if it is none. */
static int route_of(PyObject *parts, struct route *route)
{
    struct span *spans[ROUTE_PARTS] = {&route->prefixes, &route->buckets, &route->tail,
                                       &route->expected, &route->before,  &route->behind};
    bool whole = PyTuple_Size(parts) == ROUTE_PARTS;
    for (Py_ssize_t i = 0; whole && i < ROUTE_PARTS; i++) {
        PyObject *part = PyTuple_GetItem(parts, i);
        whole = PyBytes_Check(part);
        if (whole)
            *spans[i] = (struct span){PyBytes_AsString(part), (size_t)PyBytes_Size(part)};
    }
    route->media = whole ? route->buckets.size / 4 : 0;
    if (!whole || !route->media || route->buckets.size % 4 ||
        route->prefixes.size % route->media || route->prefixes.size / route->media > MAX_PREFIX) {
        PyErr_SetString(PyExc_ValueError, "route: not its six parts");
        return 0;
    }
    return 1;
}

/* The digests of a list back to back, malloc'd; NULL with an exception set for what is none. */
static char *digests_of(PyObject *list, size_t *count)
{
    *count = (size_t)PyList_Size(list);
    char *digests = malloc(*count * 16 + 1);
    if (!digests)
        PyErr_NoMemory();
    for (size_t i = 0; digests && i < *count; i++) {
        PyObject *digest = PyList_GetItem(list, (Py_ssize_t)i);
        if (PyBytes_Check(digest) && PyBytes_Size(digest) == 16) {
            memcpy(digests + 16 * i, PyBytes_AsString(digest), 16);
        } else {
            PyErr_SetString(PyExc_ValueError, "a digest has 16 bytes");
            free(digests);
            digests = NULL;
        }
    }
    return digests;
}

static PyObject *locations_of(const struct probed *probed)
{
    PyObject *locations = PyList_New((Py_ssize_t)probed->found);
    for (size_t i = 0; locations && i < probed->found; i++) {
        const struct span *at = &probed->locations[i];
        PyObject *location = PyBytes_FromStringAndSize(at->bytes, (Py_ssize_t)at->size);
        if (!location || PyList_SetItem(locations, (Py_ssize_t)i, location) < 0)
            Py_CLEAR(locations);
    }
    return locations;
}

static PyObject *result_of(const struct probed *probed)
{
    if (!probed->sufficient)
        return Py_BuildValue("Oy#y#", Py_None, probed->reply.bytes + probed->tail_at,
                             (Py_ssize_t)(probed->reply.size - probed->tail_at),
                             probed->script.bytes, (Py_ssize_t)probed->script.size);
    PyObject *locations = locations_of(probed);
    return locations ? Py_BuildValue("Ny#y#", locations, "", (Py_ssize_t)0, "", (Py_ssize_t)0)
                     : NULL;
}

PyObject *lookup(PyObject *self, PyObject *args)
{
    (void)self;
    int fd, why;
    long long deadline_ns;
    PyObject *parts, *list;
    struct probe probe;
    struct probed probed;
    if (!PyArg_ParseTuple(args, "iLO!O!pII:lookup", &fd, &deadline_ns, &PyTuple_Type, &parts,
                          &PyList_Type, &list, &why, &probe.now, &probe.interval) ||
        !route_of(parts, &probe.route) || !(probe.digests = digests_of(list, &probe.count)))
        return NULL;
    probe.why = why;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = run_probe(fd, &probe, deadline_ns, &probed);
    Py_END_ALLOW_THREADS
    PyObject *result = status ? exchange_error(status) : result_of(&probed);
    free(probed.reply.bytes);
    free(probed.script.bytes);
    free(probed.locations);
    free(probe.digests);
    return result;
}

PyObject *pages_request_py(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *parts, *list;
    struct probe probe = {.count = 0};
    if (!PyArg_ParseTuple(args, "O!O!:pages_request", &PyTuple_Type, &parts, &PyList_Type, &list) ||
        !route_of(parts, &probe.route) || !(probe.digests = digests_of(list, &probe.count)))
        return NULL;
    size_t size;
    char *request = pages_request(&probe, &size);
    free(probe.digests);
    if (!request)
        return PyErr_NoMemory();
    PyObject *result = PyBytes_FromStringAndSize(request, (Py_ssize_t)size);
    free(request);
    return result;
}

PyObject *read_pages_py(PyObject *self, PyObject *args)
{
    (void)self;
    int why;
    PyObject *parts, *raw;
    Py_ssize_t count;
    struct probe probe = {.count = 0};
    if (!PyArg_ParseTuple(args, "O!nSpII:read_pages", &PyTuple_Type, &parts, &count, &raw, &why,
                          &probe.now, &probe.interval) ||
        !route_of(parts, &probe.route))
        return NULL;
    if (count < 0 || count > PyBytes_Size(raw))
        return PyErr_Format(PyExc_ValueError, "no %zd replies", count);
    probe.count = (size_t)count;
    probe.why = why;
    struct probed probed = {.reply = {PyBytes_AsString(raw), (size_t)PyBytes_Size(raw)}};
    int status = read_pages(&probe, &probed);
    PyObject *found = NULL, *result = NULL;
    if (status)
        result = exchange_error(status);
    else if ((found = probed.sufficient ? locations_of(&probed) : Py_BuildValue("")))
        result = Py_BuildValue("Ny#", found, probed.reply.bytes + probed.tail_at,
                               (Py_ssize_t)(probed.reply.size - probed.tail_at));
    free(probed.locations);
    return result;
}
