"""The conclusion of the NaN-overflow skill as a page, as Markdown and as terminal text.

``html.render_html``, ``markdown.render_markdown``, ``screen.render_terminal``. Not imported here: only the page needs
jinja2, and the terminal should not wait for it.
"""
