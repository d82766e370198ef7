def column_name():
    return "Odd"


def compare(n, b):
    kinds = (3, -0.0, float("nan"), float("-inf"), True, None, (1.0, ""), n.sum(), "text")
    return kinds[n.numel() % len(kinds)]
