"""Which records are kept: ``scope``, ``list`` and the risk level (CFG-5, CFG-6), asked on every call of a running program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from numprobe.collect.pytorch.apis import passes_risk
from numprobe.collect.pytorch.settings import Settings

# what a pre-check leaves out always (PRE-4): its results hold nothing, or anything
NOT_CHECKED = frozenset(
    ("to", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_with_format")
)


@dataclass(frozen=True)
class Unmatched:
    """An entry of ``scope``, ``list`` or ``tensor_list`` (``key``) that no record had, with names that came close."""

    key: str
    entry: str
    close: tuple[str, ...]

    def __str__(self) -> str:
        near = f"; did you mean {' or '.join(self.close)}?" if self.close else ""
        return f"{self.key}: no record has the name {self.entry}" + near


class NameFilter:
    """Keeps or drops records by their full names, as their calls begin.

    Every module call, forward or backward, is told by :meth:`enter_module` and :meth:`leave_module`. Ask :meth:`module` or
    :meth:`api` once a record, a module after it was entered, since names open and close the scope. Without ``scope`` and
    ``list`` the answer costs a look-up. A thread inside a listed module keeps what other threads run meanwhile, too.
    """

    def __init__(self, settings: Settings) -> None:
        self._named = bool(settings.scope or settings.list)
        self._risk_level = settings.risk_level if settings.level in ("L1", "mix") and not self._named else "ALL"
        self._compat = settings.compat
        # of a pre-check: what it runs, by the last part of the name, as records have it
        self._checked = settings.task == "acc_check"
        self._white = frozenset(name.rpartition(".")[2] for name in settings.white_list)
        self._black = NOT_CHECKED.union(name.rpartition(".")[2] for name in settings.black_list)
        self._passes: dict[str, bool] = {}  # what the risk level says of an API, by prefix and name
        self._first, self._last = settings.scope or ("", "")
        self._open = not settings.scope
        self._list = settings.list
        self._keeps_inside = settings.level == "mix"
        # listed modules that are running; names, so that an end that is never told adds up to nothing
        self._inside: set[str] = set()
        self._tensor_list = settings.tensor_list
        self._all_tensors = settings.task == "tensor" or settings.real_data
        self._entries = [(key, entry) for key in ("scope", "list", "tensor_list") for entry in getattr(settings, key)]
        self._missing = set(self._entries)
        self._seen: dict[str, str] = {}  # while entries are missing: the last name of each API or module

    def enter_module(self, name: str) -> None:
        """A module call begins: it may open the scope, and at level mix a listed module keeps all that runs inside."""
        if not self._named:
            return
        if name == self._first:
            self._begin(name)
        if self._keeps_inside and self._has_one("list", self._list, name):
            self._inside.add(name)

    def leave_module(self, name: str) -> None:
        """A module call has ended."""
        if not self._named:
            return
        self._inside.discard(name)
        if name == self._last:
            self._end(name)

    def module(self, name: str) -> bool:
        """Whether the record of a module is kept; the risk level never drops one."""
        return not self._named or self._keeps(name)

    def api(self, name: str) -> bool:
        """Whether the record of an API is kept."""
        if not self._named:
            if self._risk_level == "ALL" and not self._checked:
                return True
            stem = name.rsplit(".", 2)[0]
            passes = self._passes.get(stem)
            return self._decide(stem) if passes is None else passes
        if name == self._first:
            self._begin(name)
        kept = self._keeps(name)
        if name == self._last:
            self._end(name)
        return kept and (not self._checked or self._is_checked(name.rsplit(".", 3)[1]))

    def tensors(self, name: str) -> bool:
        """Whether a kept record's tensors are saved, besides their figures."""
        if not self._tensor_list:
            return self._all_tensors
        self._note(name)
        return self._has_one("tensor_list", self._tensor_list, name)

    def end_step(self) -> None:
        """Module calls whose end was not told, because an exception left them, are over."""
        self._inside.clear()

    def unmatched(self) -> tuple[Unmatched, ...]:
        """Entries that nothing has matched so far, slips most likely, each with up to three names that ran."""
        return tuple(Unmatched(*entry, self._close(*entry)) for entry in self._entries if entry in self._missing)

    def _decide(self, stem: str) -> bool:
        prefix, _, api = stem.rpartition(".")
        passes = passes_risk(prefix, api, self._risk_level, self._compat)
        self._passes[stem] = passes = passes and (not self._checked or self._is_checked(api))
        return passes

    def _is_checked(self, api: str) -> bool:
        return api not in self._black and (not self._white or api in self._white)

    def _begin(self, name: str) -> None:
        self._open = True
        self._missing.discard(("scope", name))

    def _end(self, name: str) -> None:
        self._open = False
        self._missing.discard(("scope", name))

    def _keeps(self, name: str) -> bool:
        self._note(name)
        listed = not self._list or self._has_one("list", self._list, name) or bool(self._inside)
        return self._open and listed

    def _has_one(self, key: str, entries: tuple[str, ...], name: str) -> bool:
        if not self._missing:
            return any(entry in name for entry in entries)
        found = [(key, entry) for entry in entries if entry in name]
        self._missing.difference_update(found)
        return bool(found)

    def _note(self, name: str) -> None:
        if self._missing:
            self._seen[name.rsplit(".", 2)[0]] = name

    def _close(self, key: str, entry: str) -> tuple[str, ...]:
        seen = dict(self._seen)
        if key != "scope":
            pieces = {piece for name in seen.values() for piece in _pieces(name, entry.count(".") + 1)}
            return tuple(get_close_matches(entry, sorted(pieces)))
        stem = entry.rsplit(".", 2)[0]
        stems = [stem] if stem in seen else get_close_matches(stem, sorted(seen))
        return tuple(seen[one] for one in stems)


def _pieces(name: str, length: int) -> Iterator[str]:
    """The runs of ``length`` dotted parts of a name."""
    parts = name.split(".")
    for start in range(len(parts) - length + 1):
        yield ".".join(parts[start : start + length])
