"""Dumps of the kernels of static graphs, as MindSpore writes them: one file a tensor or one table of statistics, no dump.json."""
