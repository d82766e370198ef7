"""Texts, paths, whole numbers and defaults of a command line, taken without typer's conversion.

typer hands every value to pydantic, whose start takes a tenth of a second: a text stays a text without it, a path is made of
one, digits within the bounds are a number, and a default has its type. All else (whatever another version of typer does) goes
typer's way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_DIGITS = re.compile("0|[1-9][0-9]{0,8}")


class _Plain:
    """Stands where typer keeps what converts the values of one parameter; that is made when it is needed."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        if many and isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value) and self.kind is str:
            return list(value)
        if not many and type(value) is self.kind:
            return value
        if not many and self.kind is Path and isinstance(value, str):
            return Path(value)
        if not many and self.kind is int and isinstance(value, str) and _DIGITS.fullmatch(value):
            low, high = (getattr(param.type_descriptor.parameter_info, name) for name in ("min", "max"))
            if (low is None or int(value) >= low) and (high is None or int(value) <= high):
                return int(value)
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


class PlainCommand(TyperCommand):
    """A command whose parameters are taken as they are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        plain_types(self.get_params(ctx))
        return super().parse_args(ctx, args)


class PlainGroup(TyperGroup):
    """The same of a group of commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        plain_types(self.get_params(ctx))
        return super().parse_args(ctx, args)


class PlainApp(typer.Typer):
    """An application of such commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=PlainGroup, **settings)

    def command(self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **settings: Any) -> Any:
        return super().command(name, cls=cls or PlainCommand, **settings)


def plain_types(params: Iterable[Any]) -> None:
    """Let the parameters whose values need no more than that be taken as they are."""
    for param in params:
        descriptor = getattr(param, "type_descriptor", None)
        kind = getattr(descriptor, "annotation", None)
        if kind == list[str]:
            kind = str
        checked = any(
            getattr(getattr(descriptor, "parameter_info", None), name, None)
            for name in ("exists", "resolve_path", "writable", "parser", "click_type")
        )
        if kind in (bool, str, int, float, Path) and not checked and getattr(param, "_runtime_param", 0) is None:
            param._runtime_param = _Plain(kind)
