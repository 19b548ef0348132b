"""Sphinx's configuration."""

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
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]
default_role = "py:obj"
napoleon_use_rtype = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = f"lametta {release}"
html_math_renderer = "mathml"


# MathJax, Sphinx's own choice, makes every reader fetch it from the network; MathML is in the page.
# A formula that docutils cannot convert raises, and so ends the build.
def write_inline(translator, node):
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def write_block(translator, node):
    # Room for sums taller than their line, which would otherwise get a scroll bar.
    math = tex2mathml(node.astext(), as_block=True)
    translator.body.append(f'<div class="math" style="padding: 0.4em 0">{math}</div>')
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (write_inline, None), (write_block, None))
