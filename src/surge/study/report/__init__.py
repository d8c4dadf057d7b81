"""Self-contained HTML pages: their blocks and their look, and the page about runs."""
