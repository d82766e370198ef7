"""What ``module.c`` defines."""

VERSION: int

def figures(address: int, count: int, kind: int, /) -> tuple[float, float, float, float] | None:
    """Max, Min, Mean, Norm of ``count`` > 0 numbers in the host's memory; kind 0 float32, 1 bfloat16, 2 float16.

    Sums are taken in float32 over at most 32 numbers, further in float64. None where a number is not finite, or where squares
    might not fit into float32. Nothing checks the address.
    """

def index_members(members: bytes, /) -> tuple[list[str], bytes, bytes, bytes, list[int]] | None:
    """The members of an object that holds records, without its braces: what ``formats/msprobe/scan.py`` makes an index of.

    Names; offsets of the values' first bytes and of those behind them (int64); flags (uint8, three a member: input, output,
    parameter) as ``record/nonfinite.py`` has them; and the members whose flags only a decoder can tell, which are to be
    overwritten. None where the text is no strict JSON but for bare NaN and Infinity, is nested more than 200 deep, or has a
    name with an escape in it.
    """
