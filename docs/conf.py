"""Sphinx: `sphinx-build -W -b html docs docs/_build`, with sphinx and myst-parser installed."""

project = "kvspec"
extensions = ["myst_parser"]
exclude_patterns = ["_build", "examples"]
html_theme = "alabaster"
html_theme_options = {"description": "What a KV-cache block allocator must do"}
myst_heading_anchors = 3
