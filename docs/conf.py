"""Sphinx's configuration."""

import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

import lametta

project = "lametta"
author = "The lametta developers"
copyright = author
version = release = lametta.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "tables"]
myst_enable_extensions = ["attrs_inline", "dollarmath"]
myst_heading_anchors = 3
default_role = "py:obj"
napoleon_use_rtype = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = f"lametta {release}"
html_static_path = ["_static"]
html_favicon = "../src/lametta/serve/page/icon.svg"
html_css_files = ["lametta.css"]
pygments_dark_style = "monokai"
html_show_sphinx = False
html_math_renderer = "mathml"


# MathJax, Sphinx's own choice, makes every reader fetch it from the network; MathML is in the page.
# A formula that docutils cannot convert raises, and so ends the build.
def write_inline(translator, node):
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def write_block(translator, node):
    math = tex2mathml(node.astext(), as_block=True)
    translator.body.append(f'<div class="math">{math}</div>')
    raise nodes.SkipNode


# What Sphinx alone understands stands in comments, so that others who show Markdown leave it out.
def uncomment(app, page, source):
    source[0] = re.sub(r"<!-- sphinx\s(.*?)\s-->", r"\1", source[0], flags=re.DOTALL)


def setup(app):
    app.connect("source-read", uncomment)
    app.add_html_math_renderer("mathml", (write_inline, None), (write_block, None))
