"""A language model that words answers and looks things up. What is true is decided elsewhere; nothing here is needed offline."""
