"""Sphinx's configuration: `make docs` builds the site into build/docs, and every warning is an error."""

project = "specgate"
author = "the specgate authors"
html_title = "specgate"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_generate"]

# Headings get the anchors that GitHub gives them, so that links work in both places.
myst_heading_anchors = 4

html_theme = "furo"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "default"
