"""Two dumps that should agree: one table of what differs, and verdicts that know the arithmetic."""
