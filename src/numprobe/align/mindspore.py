"""MindSpore's APIs as PyTorch calls them: facts about names, no more."""

from __future__ import annotations

CLASSES = {"Mint": "Torch", "MintFunctional": "Functional"}

# functions and methods that PyTorch calls otherwise; all others have one name in both
_NAMES = {
    ("Functional", "bidense"): "bilinear",
    ("Functional", "dense"): "linear",
    ("Functional", "equal"): "eq",
    ("Functional", "swapaxes"): "transpose",
    ("Tensor", "asnumpy"): "numpy",
    ("Tensor", "cauchy"): "cauchy_",
    ("Tensor", "equal"): "eq",
    ("Tensor", "fill_diagonal"): "fill_diagonal_",
    ("Tensor", "gather_elements"): "gather",
    ("Tensor", "swapaxes"): "transpose",
}


def pytorch_api(prefix: str, api: str) -> tuple[str, str]:
    """``("Mint", "add")`` -> ``("Torch", "add")``. A ``Functional`` one may be a ``Torch`` one there."""
    return CLASSES.get(prefix, prefix), _NAMES.get((prefix, api), api)
