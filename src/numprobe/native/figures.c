/* Max, Min, Mean and Norm of a tensor in one look at its memory.

   Numbers go to LANES running figures in turn, whatever the width of the machine's registers, so that the result is the same
   everywhere. After a row the lanes are added up in double: an error stays near that of ROW / LANES additions in float. */
#include "kernels.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 32, ROW = 32 * LANES, LONG = 1 << 15 };
enum { FLOAT32, BFLOAT16, FLOAT16 };

/* magnitudes whose squares neither overflow nor vanish when a row of them is added in float */
static const double SMALLEST = 1e-12, LARGEST = 1e17;

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define FOR_EVERY_PROCESSOR __attribute__((target_clones("avx2", "default")))
#endif
#endif
#ifndef FOR_EVERY_PROCESSOR
#define FOR_EVERY_PROCESSOR
#endif

typedef struct {
    float high, low;
    double total, squares;
} Figures;

static inline float same(float value) { return value; }

static inline float as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float of_bfloat16(uint16_t bits) { return as_float((uint32_t)bits << 16); }

static inline float of_float16(uint16_t bits)
{
    /* the exponent is moved by a product, which is exact for subnormal numbers too */
    uint32_t magnitude = (uint32_t)(bits & 0x7fff) << 13;
    float value = as_float(magnitude) * 0x1p112f;
    uint32_t moved;
    memcpy(&moved, &value, sizeof moved);
    if (magnitude >= 0x0f800000u) /* infinite, or no number */
        moved |= 0x7f800000u;
    return as_float(moved | (uint32_t)(bits & 0x8000) << 16);
}

#define FIGURES_OF(NAME, TYPE, VALUE)                                                                                      \
    FOR_EVERY_PROCESSOR static Figures NAME(const TYPE *numbers, Py_ssize_t count)                                         \
    {                                                                                                                      \
        float high[LANES], low[LANES];                                                                                     \
        for (int k = 0; k < LANES; k++) {                                                                                  \
            high[k] = -INFINITY;                                                                                           \
            low[k] = INFINITY;                                                                                             \
        }                                                                                                                  \
        Figures found = {-INFINITY, INFINITY, 0.0, 0.0};                                                                   \
        Py_ssize_t i = 0, whole = count - count % LANES;                                                                   \
        while (i < whole) {                                                                                                \
            Py_ssize_t end = whole - i < ROW ? whole : i + ROW;                                                            \
            float total[LANES] = {0}, squares[LANES] = {0};                                                                \
            for (; i < end; i += LANES)                                                                                    \
                for (int k = 0; k < LANES; k++) {                                                                          \
                    float value = VALUE(numbers[i + k]);                                                                   \
                    high[k] = value > high[k] ? value : high[k];                                                           \
                    low[k] = value < low[k] ? value : low[k];                                                              \
                    total[k] += value;                                                                                     \
                    squares[k] += value * value;                                                                           \
                }                                                                                                          \
            for (int k = 0; k < LANES; k++) {                                                                              \
                found.total += total[k];                                                                                   \
                found.squares += squares[k];                                                                               \
            }                                                                                                              \
        }                                                                                                                  \
        for (int k = 0; i < count; i++, k++) {                                                                             \
            float value = VALUE(numbers[i]);                                                                               \
            high[k] = value > high[k] ? value : high[k];                                                                   \
            low[k] = value < low[k] ? value : low[k];                                                                      \
            found.total += value;                                                                                          \
            found.squares += (double)value * value;                                                                        \
        }                                                                                                                  \
        for (int k = 0; k < LANES; k++) {                                                                                  \
            found.high = high[k] > found.high ? high[k] : found.high;                                                      \
            found.low = low[k] < found.low ? low[k] : found.low;                                                           \
        }                                                                                                                  \
        return found;                                                                                                      \
    }

FIGURES_OF(of_floats, float, same)
FIGURES_OF(of_bfloat16s, uint16_t, of_bfloat16)
FIGURES_OF(of_float16s, uint16_t, of_float16)

static Figures figures_of(const void *numbers, Py_ssize_t count, long kind)
{
    switch (kind) {
    case BFLOAT16:
        return of_bfloat16s(numbers, count);
    case FLOAT16:
        return of_float16s(numbers, count);
    default:
        return of_floats(numbers, count);
    }
}

PyObject *numprobe_figures(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    if (given != 3) {
        PyErr_SetString(PyExc_TypeError, "figures(address, count, kind)");
        return NULL;
    }
    const void *numbers = PyLong_AsVoidPtr(arguments[0]);
    Py_ssize_t count = PyLong_AsSsize_t(arguments[1]);
    long kind = PyLong_AsLong(arguments[2]);
    if (PyErr_Occurred())
        return NULL;
    if (numbers == NULL || count <= 0 || kind < FLOAT32 || kind > FLOAT16) {
        PyErr_SetString(PyExc_ValueError, "figures: no numbers there, or a kind that is not known");
        return NULL;
    }
    Figures found;
    if (count < LONG)
        found = figures_of(numbers, count, kind);
    else {
        Py_BEGIN_ALLOW_THREADS found = figures_of(numbers, count, kind);
        Py_END_ALLOW_THREADS
    }
    double largest = found.high > -found.low ? found.high : -(double)found.low;
    int zero = found.high == 0 && found.low == 0;
    /* a NaN is in no comparison, but in both sums */
    if (!(found.squares - found.squares == 0) || (!zero && !(SMALLEST < largest && largest < LARGEST)))
        Py_RETURN_NONE;
    return Py_BuildValue("dddd", (double)found.high, (double)found.low, found.total / (double)count, sqrt(found.squares));
}
