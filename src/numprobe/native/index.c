/* Where the members of a dump.json lie, and which of their sections hold tensors with non-finite extrema. */
#include "kernels.h"

#include "json.h"

enum { DEEPEST = 200 };
enum { IS_NAN = 1, IS_POSITIVE = 2, IS_NEGATIVE = 4, MAYBE_NAN = 8 }; /* as record/nonfinite.py has them */
enum { INPUT, OUTPUT, PARAMETER, ELSEWHERE, SECTIONS };               /* the first three are the columns of the flags */

/* what an object says of its extrema, by the bits that they mean */
enum { MAX_SEEN = 1, MIN_SEEN = 2 };

typedef struct {
    char closing; /* the bracket that ends it */
    unsigned char seen, max, min;
} Container;

typedef struct {
    unsigned char found[SECTIONS]; /* of all tensors in a section */
    unsigned char own;             /* of the member itself, where it has a Max or Min */
    int unclear;                   /* only a decoder can tell */
} Flags;

static int same_text(Text begin, Text end, const char *word, size_t length)
{
    return (size_t)(end - begin) == length && memcmp(begin, word, length) == 0;
}
#define IS(begin, end, word) same_text(begin, end, word, sizeof(word) - 1)

static int section_of(Text begin, Text end)
{
    if (IS(begin, end, "output"))
        return OUTPUT;
    if (IS(begin, end, "input_args") || IS(begin, end, "input_kwargs") || IS(begin, end, "input"))
        return INPUT;
    return IS(begin, end, "parameters") ? PARAMETER : ELSEWHERE;
}

/* Both infinite: Max = -inf and Min = inf is what a reduction over nothing gives. */
static unsigned char kinds_of(unsigned char max, unsigned char min)
{
    unsigned char bits = max | min;
    if (bits == (IS_POSITIVE | IS_NEGATIVE))
        return max == IS_POSITIVE ? bits | MAYBE_NAN : 0;
    return bits;
}

/* A string as an extremum: -1 where it has to be decoded. */
static int kind_of_string(Text begin, Text end, int escaped)
{
    if (!escaped) {
        if (IS(begin, end, "nan") || IS(begin, end, "NaN"))
            return IS_NAN;
        if (IS(begin, end, "inf") || IS(begin, end, "Infinity"))
            return IS_POSITIVE;
        if (IS(begin, end, "-inf") || IS(begin, end, "-Infinity"))
            return IS_NEGATIVE;
        Text at = begin;
        while (is_digit(*at) || *at == '.' || *at == '-')
            at++;
        if (at == end && end - begin < CLEAR_LENGTH)
            return 0; /* finite, or no number */
    }
    return -1;
}

/* One value, from its first byte on. */
static Text read_member(Text at, Text end, Flags *flags)
{
    Container open[DEEPEST];
    int depth = 0;
    int section = ELSEWHERE;
    unsigned char *extremum = NULL; /* where the value to come belongs if it is that of Max or Min */

value:
    switch (*at) {
    case '{':
    case '[':
        if (extremum != NULL) {
            flags->unclear = 1;
            extremum = NULL;
        }
        if (depth == DEEPEST)
            return NULL;
        open[depth].closing = *at == '{' ? '}' : ']';
        open[depth].seen = open[depth].max = open[depth].min = 0;
        depth++;
        at = skip_space(at + 1, end);
        if (*at == (unsigned char)open[depth - 1].closing)
            goto closed;
        if (open[depth - 1].closing == ']')
            goto value;
        goto key;
    case '"': {
        int escaped = 0;
        Text begin = at + 1;
        if ((at = skip_string(begin, end, &escaped)) == NULL)
            return NULL;
        if (extremum != NULL) {
            int kind = kind_of_string(begin, at - 1, escaped);
            if (kind < 0)
                flags->unclear = 1;
            else
                *extremum = (unsigned char)kind;
        }
        break;
    }
    case 't':
    case 'f':
    case 'n':
        if ((at = skip_literal(at)) == NULL)
            return NULL;
        break;
    default: {
        static const unsigned char KINDS[] = {0, IS_NAN, IS_POSITIVE, IS_NEGATIVE, 0};
        NumberKind kind;
        if ((at = skip_number(at, &kind)) == NULL)
            return NULL;
        if (extremum != NULL) {
            *extremum = KINDS[kind];
            flags->unclear |= kind == NUMBER_UNCLEAR;
        }
    }
    }
    extremum = NULL;

after_value:
    if (depth == 0)
        return at;
    at = skip_space(at, end);
    if (*at == ',') {
        at = skip_space(at + 1, end);
        if (open[depth - 1].closing == ']')
            goto value;
        goto key;
    }
    if (*at != (unsigned char)open[depth - 1].closing)
        return NULL;

closed:
    at++;
    depth--;
    if (open[depth].seen) {
        unsigned char kinds = kinds_of(open[depth].max, open[depth].min);
        if (depth == 0)
            flags->own |= kinds;
        else
            flags->found[section] |= kinds;
    }
    goto after_value;

key: {
    int escaped = 0;
    if (*at != '"')
        return NULL;
    Text begin = at + 1;
    if ((at = skip_string(begin, end, &escaped)) == NULL)
        return NULL;
    Text close = at - 1;
    if (escaped) /* it may be spelled otherwise */
        flags->unclear = 1;
    if (depth == 1)
        section = section_of(begin, close);
    if (close - begin == 3 && begin[0] == 'M') {
        Container *tensor = &open[depth - 1];
        unsigned char seen = 0;
        if (IS(begin, close, "Max")) {
            seen = MAX_SEEN;
            extremum = &tensor->max;
        } else if (IS(begin, close, "Min")) {
            seen = MIN_SEEN;
            extremum = &tensor->min;
        }
        if (tensor->seen & seen) /* twice: what counts is for the decoder to say */
            flags->unclear = 1;
        tensor->seen |= seen;
    }
    at = skip_space(at, end);
    if (*at != ':')
        return NULL;
    at = skip_space(at + 1, end);
    goto value;
}
}

typedef enum { PLAIN, GRADIENTS, ANOTHER } Form;

/* What the sections of a record of this name mean (record/names.py): what they are called, each a parameter, or anything. */
static Form form_of(Text begin, Text end)
{
    static const char WORD[] = ".parameters_grad.";
    const ptrdiff_t length = sizeof WORD - 1;
    if (end - begin >= 5 && memcmp(end - 5, "debug", 5) == 0)
        return ANOTHER;
    Text number = end;
    while (number > begin && is_digit(number[-1]))
        number--;
    if (number == end || number - begin < length || memcmp(number - length, WORD, (size_t)length) != 0)
        return PLAIN;
    ptrdiff_t path = number - length - begin; /* at least a module's name stands behind the prefix */
    int module = (path > 6 && memcmp(begin, "Module.", 7) == 0) || (path > 4 && memcmp(begin, "Cell.", 5) == 0);
    return module && end - number <= 18 ? GRADIENTS : ANOTHER;
}

typedef struct {
    char *bytes;
    size_t used, size;
} Column;

static int append(Column *column, const void *bytes, size_t count)
{
    if (column->used + count > column->size) {
        size_t size = column->size ? 2 * column->size : 1 << 12;
        char *larger = PyMem_Realloc(column->bytes, size);
        if (larger == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        column->bytes = larger;
        column->size = size;
    }
    memcpy(column->bytes + column->used, bytes, count);
    column->used += count;
    return 0;
}

static PyObject *as_bytes(const Column *column)
{
    return PyBytes_FromStringAndSize(column->bytes, (Py_ssize_t)column->used);
}

static int append_new(PyObject *list, PyObject *item)
{
    if (item == NULL)
        return -1;
    int failed = PyList_Append(list, item);
    Py_DECREF(item);
    return failed;
}

typedef struct {
    PyObject *names, *unclear;
    Column start, end, flags;
} Rows;

/* 1: all members were read; 0: this text is for others to read; -1: an exception. */
static int read_members(Text begin, Text end, Rows *rows)
{
    Text at = skip_space(begin, end);
    for (int64_t row = 0; at < end; row++) {
        int escaped = 0;
        if (row > 0) {
            if (*at != ',')
                return 0;
            at = skip_space(at + 1, end);
        }
        if (*at != '"')
            return 0;
        Text name = at + 1;
        if ((at = skip_string(name, end, &escaped)) == NULL || escaped)
            return 0;
        Text name_end = at - 1;
        at = skip_space(at, end);
        if (*at != ':')
            return 0;
        at = skip_space(at + 1, end);
        Flags flags = {{0}, 0, 0};
        int64_t start = at - begin;
        if ((at = read_member(at, end, &flags)) == NULL)
            return 0;
        int64_t stop = at - begin;
        at = skip_space(at, end);

        PyObject *text = PyUnicode_DecodeUTF8((const char *)name, name_end - name, "strict");
        if (text == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            PyErr_Clear();
            return 0;
        }
        if (append_new(rows->names, text) < 0)
            return -1;
        Form form = form_of(name, name_end);
        if (form != PLAIN) {
            unsigned char all = 0;
            for (int k = 0; k < SECTIONS; k++)
                all |= flags.found[k];
            if (form == ANOTHER && (all | flags.own))
                flags.unclear = 1;
            flags.found[INPUT] = flags.found[PARAMETER] = 0;
            flags.found[OUTPUT] = all;
        }
        if (flags.unclear && append_new(rows->unclear, PyLong_FromLongLong(row)) < 0)
            return -1;
        if (append(&rows->start, &start, sizeof start) < 0 || append(&rows->end, &stop, sizeof stop) < 0 ||
            append(&rows->flags, flags.found, 3) < 0)
            return -1;
    }
    return at == end;
}

PyObject *numprobe_index_members(PyObject *module, PyObject *bytes)
{
    (void)module;
    char *text;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(bytes, &text, &length) < 0)
        return NULL;
    Rows rows = {PyList_New(0), PyList_New(0), {0}, {0}, {0}};
    PyObject *result = NULL;
    if (rows.names != NULL && rows.unclear != NULL) {
        int read = read_members((Text)text, (Text)text + length, &rows);
        if (read == 1)
            result = Py_BuildValue("ONNNO", rows.names, as_bytes(&rows.start), as_bytes(&rows.end), as_bytes(&rows.flags),
                                   rows.unclear);
        else if (read == 0) {
            result = Py_None;
            Py_INCREF(result);
        }
    }
    Py_XDECREF(rows.names);
    Py_XDECREF(rows.unclear);
    PyMem_Free(rows.start.bytes);
    PyMem_Free(rows.end.bytes);
    PyMem_Free(rows.flags.bytes);
    return result;
}
