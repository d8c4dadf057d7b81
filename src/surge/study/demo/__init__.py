"""The demo: its runs, its packed network, its page."""
