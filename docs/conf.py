"""Sphinx's configuration."""

import lametta

project = "lametta"
author = "The lametta developers"
copyright = author
version = release = lametta.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]
default_role = "py:obj"
napoleon_use_rtype = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = f"lametta {release}"
