def column_name():
    return "Largest"


def compare(n, b):
    return float((n - b).abs().max())
