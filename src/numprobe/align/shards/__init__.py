"""Ranks that hold parts of one model, put together into one side of a comparison.

``grid`` says which ranks of the two dumps belong together, from their parameters and shapes. ``columns`` puts the pipeline
stages of a column of ranks behind each other, ``fold`` lays the tensor parallel columns over each other, ``spread`` says from
the evidence how each leaf is spread over them, and ``merged`` makes of them one :class:`~numprobe.align.calls.Calls` that is
aligned, measured and judged like any other rank. ``unit`` does all that for one set of ranks.
"""
