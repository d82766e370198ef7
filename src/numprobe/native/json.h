/* Steps over JSON text, each checked in full. A function returns the place behind what it read, NULL where that is no JSON.

   Text is what a bytes object holds: a zero byte follows its end, which is in no token, so that a single byte may always be
   looked at. NaN, Infinity and -Infinity count as numbers. Bytes above 127 may stand in strings, whatever they mean. */
#ifndef NUMPROBE_JSON_H
#define NUMPROBE_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef const unsigned char *Text;

#define EIGHT(BYTE) (0x0101010101010101ull * (uint64_t)(BYTE))

static inline uint64_t eight_at(Text at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* Nonzero where one of the eight bytes is zero. */
static inline uint64_t any_zero(uint64_t word) { return (word - EIGHT(0x01)) & ~word & EIGHT(0x80); }

static inline int is_digit(unsigned char byte) { return (unsigned char)(byte - '0') < 10; }

static inline int is_hexadecimal(unsigned char byte)
{
    return is_digit(byte) || (unsigned char)((byte | 0x20) - 'a') < 6;
}

static inline Text skip_space(Text at, Text end)
{
    if (*at > ' ')
        return at;
    for (;;) {
        while (end - at >= 8 && eight_at(at) == EIGHT(' '))
            at += 8;
        if (*at != ' ' && *at != '\n' && *at != '\r' && *at != '\t')
            return at;
        at++;
    }
}

/* From behind the opening quote to behind the closing one; *escaped is set where a backslash stands in between. */
static inline Text skip_string(Text at, Text end, int *escaped)
{
    for (;;) {
        while (end - at >= 8) {
            uint64_t word = eight_at(at);
            uint64_t control = (word - EIGHT(0x20)) & ~word & EIGHT(0x80);
            if (control | any_zero(word ^ EIGHT('"')) | any_zero(word ^ EIGHT('\\')))
                break;
            at += 8;
        }
        while (*at >= 0x20 && *at != '"' && *at != '\\') {
            at++;
            if (end - at >= 8 && ((uintptr_t)at & 7) == 0)
                break;
        }
        if (*at == '"')
            return at + 1;
        if (*at == '\\') {
            *escaped = 1;
            at++;
            if (*at == 'u') {
                for (int k = 1; k <= 4; k++)
                    if (!is_hexadecimal(at[k])) /* the zero byte at the end is none */
                        return NULL;
                at += 5;
            } else if (*at != 0 && strchr("\"\\/bfnrt", *at) != NULL)
                at++;
            else
                return NULL;
        } else if (*at < 0x20)
            return NULL;
    }
}

typedef enum { NUMBER_FINITE, NUMBER_NAN, NUMBER_POSITIVE, NUMBER_NEGATIVE, NUMBER_UNCLEAR } NumberKind;

enum { CLEAR_LENGTH = 200 }; /* a number of fewer digits, with an exponent of one or two, is finite in double */

static inline Text skip_word(Text at, const char *word, size_t length)
{
    return strncmp((const char *)at, word, length) == 0 ? at + length : NULL;
}

static inline Text skip_digits(Text at)
{
    if (!is_digit(*at))
        return NULL;
    do
        at++;
    while (is_digit(*at));
    return at;
}

static inline Text skip_number(Text at, NumberKind *kind)
{
    Text begin = at;
    *kind = NUMBER_FINITE;
    if (*at == 'N') {
        *kind = NUMBER_NAN;
        return skip_word(at, "NaN", 3);
    }
    if (*at == '-')
        at++;
    if (*at == 'I') {
        *kind = at == begin ? NUMBER_POSITIVE : NUMBER_NEGATIVE;
        return skip_word(at, "Infinity", 8);
    }
    if (*at == '0')
        at++;
    else if ((at = skip_digits(at)) == NULL)
        return NULL;
    if (*at == '.' && (at = skip_digits(at + 1)) == NULL)
        return NULL;
    if (*at == 'e' || *at == 'E') {
        at++;
        if (*at == '+' || *at == '-')
            at++;
        Text exponent = at;
        if ((at = skip_digits(at)) == NULL)
            return NULL;
        if (at - exponent > 2)
            *kind = NUMBER_UNCLEAR;
    }
    if (at - begin > CLEAR_LENGTH)
        *kind = NUMBER_UNCLEAR;
    return at;
}

/* true, false or null */
static inline Text skip_literal(Text at)
{
    return *at == 't' ? skip_word(at, "true", 4) : *at == 'f' ? skip_word(at, "false", 5) : skip_word(at, "null", 4);
}

#endif
