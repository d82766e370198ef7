"""What a module is for, whatever framework calls it what: roles, from rules that are data (``rules.json``)."""
