"""A pickle read without running it: values, containers and the names of a fixed list; nothing is imported or called.

A pickle is a program for a stack machine (https://docs.python.org/3/library/pickletools.html lists its operations). This machine
builds numbers, texts and containers; a name that the program asks for is looked up in a table of ours, and a call is made
only to what stands there. What comes out can be deep, shared and even contain itself, but a program of n bytes never makes more
than n objects, as long as what is listed copies nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from numprobe.formats.tensors.content import Damaged


class NotListed(Exception):
    """The pickle asks for a name that is not on the list: ``name`` is ``module.name``."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Call(NamedTuple):
    """What stands for a name that may be called: with the arguments in the pickle, ``build`` makes the value."""

    build: Callable[..., object]


_KEYS = (str, int, float, bool, bytes, type(None))  # the hash of a deep tuple would overflow the C stack
_U2, _I4, _U4, _U8, _F8 = (struct.Struct(f).unpack_from for f in ("<H", "<i", "<I", "<Q", ">d"))
# Operations whose argument is bytes of a length that is written before them: width of the length, what the bytes are.
_COUNTED: dict[int, tuple[int, Callable[[bytes], object]]] = {
    0x58: (4, lambda b: b.decode("utf-8", "surrogatepass")),  # BINUNICODE
    0x8C: (1, lambda b: b.decode("utf-8", "surrogatepass")),  # SHORT_BINUNICODE
    0x8D: (8, lambda b: b.decode("utf-8", "surrogatepass")),  # BINUNICODE8
    0x55: (1, lambda b: b.decode("latin-1")),  # SHORT_BINSTRING
    0x54: (4, lambda b: b.decode("latin-1")),  # BINSTRING
    0x43: (1, bytes),  # SHORT_BINBYTES
    0x42: (4, bytes),  # BINBYTES
    0x8E: (8, bytes),  # BINBYTES8
    0x96: (8, bytes),  # BYTEARRAY8
    0x8A: (1, lambda b: int.from_bytes(b, "little", signed=True)),  # LONG1
    0x8B: (4, lambda b: int.from_bytes(b, "little", signed=True)),  # LONG4
}


def read_pickle(
    data: bytes, listed: Mapping[str, object], persistent: Callable[[object], object], begin: int = 0
) -> tuple[object, int]:
    """The value of the pickle that begins at ``begin``, and where it ends.

    ``listed`` maps ``module.name`` to what stands for it, a :class:`Call` for what may be called. ``persistent`` turns a
    persistent id, which is how PyTorch refers to storages, into a value.

    Raises:
        NotListed: a name that ``listed`` does not have.
        Damaged: no pickle, or one that ends too early.
    """
    try:
        return _run(data, listed, persistent, begin)
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise Damaged(f"its pickle is broken ({type(error).__name__})") from None


def _run(
    data: bytes, listed: Mapping[str, object], persistent: Callable[[object], object], i: int
) -> tuple[object, int]:
    stack: list[Any] = []
    marks: list[int] = []  # heights of the stack
    memo: dict[int, Any] = {}
    push, pop = stack.append, stack.pop
    while True:
        op = data[i]
        i += 1
        if op == 0x71:  # BINPUT
            memo[data[i]] = stack[-1]
            i += 1
        elif op == 0x4B:  # BININT1
            push(data[i])
            i += 1
        elif op == 0x58:  # BINUNICODE, once more below: most of a small pickle
            end = i + 4 + int.from_bytes(data[i : i + 4], "little")
            if end > len(data):
                raise IndexError
            push(data[i + 4 : end].decode("utf-8", "surrogatepass"))
            i = end
        elif op == 0x63:  # GLOBAL
            middle = data.index(b"\n", i)
            end = data.index(b"\n", middle + 1)
            push(_find(listed, data[i:middle].decode(), data[middle + 1 : end].decode()))
            i = end + 1
        elif op == 0x28:  # MARK
            marks.append(len(stack))
        elif op == 0x74:  # TUPLE
            push(tuple(_above(stack, marks.pop())))
        elif op == 0x85:  # TUPLE1
            stack[-1] = (stack[-1],)
        elif op == 0x86:  # TUPLE2
            stack[-2:] = [(stack[-2], stack[-1])]
        elif op == 0x87:  # TUPLE3
            stack[-3:] = [(stack[-3], stack[-2], stack[-1])]
        elif op == 0x29:  # EMPTY_TUPLE
            push(())
        elif op == 0x52 or op == 0x81:  # REDUCE, NEWOBJ
            arguments = pop()
            stack[-1] = stack[-1].build(*arguments)
        elif op == 0x51:  # BINPERSID
            stack[-1] = persistent(stack[-1])
        elif op == 0x88:  # NEWTRUE
            push(True)
        elif op == 0x89:  # NEWFALSE
            push(False)
        elif op == 0x4E:  # NONE
            push(None)
        elif op == 0x68:  # BINGET
            push(memo[data[i]])
            i += 1
        elif op == 0x7D:  # EMPTY_DICT
            push({})
        elif op == 0x5D or op == 0x8F:  # EMPTY_LIST, EMPTY_SET
            push([])
        elif op == 0x73:  # SETITEM
            value, key = pop(), pop()
            _set(stack[-1], key, value)
        elif op == 0x75:  # SETITEMS
            pairs = _above(stack, marks.pop())
            for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                _set(stack[-1], key, value)
        elif op == 0x61:  # APPEND
            value = pop()
            stack[-1].append(value)
        elif op == 0x65 or op == 0x90:  # APPENDS, ADDITEMS
            items = _above(stack, marks.pop())
            stack[-1].extend(items)
        elif op == 0x62:  # BUILD
            state = pop()
            _build(stack[-1], state)
        elif op == 0x4A:  # BININT
            push(_I4(data, i)[0])
            i += 4
        elif op == 0x4D:  # BININT2
            push(_U2(data, i)[0])
            i += 2
        elif op == 0x47:  # BINFLOAT
            push(_F8(data, i)[0])
            i += 8
        elif op == 0x72:  # LONG_BINPUT
            memo[_U4(data, i)[0]] = stack[-1]
            i += 4
        elif op == 0x6A:  # LONG_BINGET
            push(memo[_U4(data, i)[0]])
            i += 4
        elif op == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
        elif op in _COUNTED:
            width, make = _COUNTED[op]
            start = i + width
            end = start + int.from_bytes(data[i:start], "little")
            if end > len(data):
                raise IndexError
            push(make(data[start:end]))
            i = end
        elif op == 0x93:  # STACK_GLOBAL
            name, module = pop(), pop()
            push(_find(listed, module, name))
        elif op == 0x6C:  # LIST
            push(_above(stack, marks.pop()))
        elif op == 0x64:  # DICT
            pairs = _above(stack, marks.pop())
            push({})
            for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                _set(stack[-1], key, value)
        elif op == 0x91:  # FROZENSET
            push(_above(stack, marks.pop()))
        elif op == 0x30:  # POP
            pop()
        elif op == 0x31:  # POP_MARK
            _above(stack, marks.pop())
        elif op == 0x32:  # DUP
            push(stack[-1])
        elif op == 0x80:  # PROTO
            i += 1
        elif op == 0x95:  # FRAME
            i += 8
        elif op == 0x2E:  # STOP
            return pop(), i
        else:
            raise Damaged(f"its pickle holds operation 0x{op:02x}, which tensors do not need")


def _find(listed: Mapping[str, object], module: object, name: object) -> object:
    if not isinstance(module, str) or not isinstance(name, str):
        raise TypeError
    full = f"{module}.{name}"
    found = listed.get(full)
    if found is None:
        raise NotListed(full)
    return found


def _above(stack: list[Any], height: int) -> list[Any]:
    """What lies above a mark, taken off."""
    items = stack[height:]
    del stack[height:]
    return items


def _set(target: dict[Any, Any], key: object, value: object) -> None:
    if type(target) is not dict:
        raise TypeError
    target[key if type(key) in _KEYS else f"<{type(key).__name__} {len(target)}>"] = value


def _build(target: object, state: object) -> None:
    """State of an object: the attributes of a namespace; those of a dict or of a value that is not kept do not matter."""
    if type(target) is Attributes and type(state) is dict:
        target.fields = state
    elif target is not None and not isinstance(target, dict):
        raise TypeError


class Attributes:
    """A namespace. ``fields`` is the dict in the pickle itself: a copy each time would let a small file fill the memory."""

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields: dict[Any, Any] = {}
