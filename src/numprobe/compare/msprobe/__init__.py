"""What msProbe's ``compare`` and ``merge_result`` write, from the same pairs of records: rows, verdicts, files."""
