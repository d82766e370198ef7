"""Questions on a finished run, answered from its artifacts and from the records of its dumps."""
