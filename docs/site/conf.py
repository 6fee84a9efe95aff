# SPDX-License-Identifier: LGPL-2.1-or-later
"""Configure Sphinx. ``docs.site`` makes the directory that Sphinx reads."""

import efuse

project = "eFuse"
author = "eFuse's authors"
version = release = efuse.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
highlight_language = "none"

default_role = "code"
autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
add_module_names = False

html_theme = "furo"
html_title = f"eFuse {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
