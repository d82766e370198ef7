/* What the files of the extension share: Python's stable interface, of 3.10 and newer. */
#ifndef NUMPROBE_KERNELS_H
#define NUMPROBE_KERNELS_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

PyObject *numprobe_figures(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
PyObject *numprobe_index_members(PyObject *module, PyObject *bytes);

#endif
