"""The conclusion of a comparison as a page, as Markdown and as terminal text."""
