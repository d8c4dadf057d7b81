"""mkdocs calls these while it builds the site; what they do is in ``surge.study.site``."""

from surge.study.site import on_config, on_files, on_page_markdown

__all__ = ["on_config", "on_files", "on_page_markdown"]
