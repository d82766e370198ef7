"""Names of records: ``Torch.log.0.forward``, ``Module.layers.3.mlp.MLP.forward.0``, ``Cell.net.Dense.parameters_grad.0``.

Both kinds are parsed from the right, since prefixes and API names may contain dots
(``Primitive.matmul.MatMul.0.forward``) and module paths always do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from sys import intern

FORWARD = "forward"
BACKWARD = "backward"
PARAMETERS_GRAD = "parameters_grad"
DEBUG = "debug"

_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.([0-9]{1,9})(?=\.|$)")
_CALL = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)  # there are millions
class OpName:
    """The parts of a record's name.

    ``kind`` is ``api``, ``module``, ``parameters_grad``, ``debug`` or ``other`` (a name of no known form, kept whole in
    ``api``). ``prefix`` is ``Torch``, ``Functional``, ``Module``, ``Cell``, ...; ``api`` the API's name, for modules
    the class; ``path`` the dotted module path; ``call`` the call counter, -1 where there is none.
    """

    name: str
    kind: str
    prefix: str
    api: str
    path: str
    direction: str
    call: int

    @property
    def is_module(self) -> bool:
        return self.kind in ("module", PARAMETERS_GRAD)

    @property
    def layer(self) -> int | None:
        """Index of the innermost ``layers.<n>``-like part of the module path; None outside layers and for APIs."""
        found = _LAYER.findall(self.path)
        return int(found[-1]) if found else None


@lru_cache(maxsize=1 << 16)
def parse_name(name: str) -> OpName:
    """Parse a record's name. Never fails: a name of no known form has kind ``other``."""
    parts = [intern(part) for part in name.split(".")]
    n = len(parts)
    if n >= 4 and parts[0] in ("Module", "Cell") and _CALL.fullmatch(parts[-1]):
        word = parts[-2]
        if word in (FORWARD, BACKWARD):
            return OpName(name, "module", parts[0], parts[-3], ".".join(parts[1:-3]), word, int(parts[-1]))
        if word == PARAMETERS_GRAD:
            return OpName(name, PARAMETERS_GRAD, parts[0], parts[-3], ".".join(parts[1:-3]), BACKWARD, int(parts[-1]))
    if n >= 3 and parts[-1] in (FORWARD, BACKWARD) and _CALL.fullmatch(parts[-2]):
        return OpName(name, "api", parts[0], ".".join(parts[1:-2]) or parts[0], "", parts[-1], int(parts[-2]))
    if n >= 3 and parts[-1] == DEBUG and _CALL.fullmatch(parts[-2]):
        return OpName(name, DEBUG, "", ".".join(parts[:-2]), "", "", int(parts[-2]))
    return OpName(name, "other", "", name, "", "", -1)


def module_key(op: OpName) -> str:
    """``path.Class`` of a module record: the same for its forward, backward and parameter-gradient records."""
    return f"{op.path}.{op.api}" if op.path else op.api
