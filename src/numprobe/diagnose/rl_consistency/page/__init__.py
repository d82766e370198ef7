"""The conclusion of the RL-consistency skill as Markdown and as terminal text."""
