"""What ``module.c`` defines."""

VERSION: int

def figures(address: int, count: int, kind: int, /) -> tuple[float, float, float, float] | None:
    """Max, Min, Mean, Norm of ``count`` > 0 numbers in the host's memory; kind 0 float32, 1 bfloat16, 2 float16.

    Sums are taken in float32 over at most 32 numbers, further in float64. None where a number is not finite, or where squares
    might not fit into float32. Nothing checks the address.
    """
