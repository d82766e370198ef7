/* The extension module numprobe.native._kernels. */
#include "kernels.h"

static PyMethodDef methods[] = {
    {"figures", (PyCFunction)(void (*)(void))numprobe_figures, METH_FASTCALL, NULL},
    {"index_members", numprobe_index_members, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernels", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernels(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "VERSION", 1) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
