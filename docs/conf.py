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
exclude_patterns = ["_build", "_generated"]
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


def setup(app):
    app.add_html_math_renderer("mathml", (write_inline, None), (write_block, None))


def _write_tables() -> None:
    """Make the tables of docs/methods.md from the methods themselves."""
    from pathlib import Path

    from lametta import methods
    from lametta._signatures import parameters_of
    from lametta.affinity import AFFINITIES

    def table(*rows: tuple[str, ...]) -> str:
        head, *body = (f"| {' | '.join(row)} |" for row in rows)
        return "\n".join([head, "|---" * len(rows[0]) + "|", *body]) + "\n"

    def options(parameters: dict) -> str:
        return ", ".join(f"`{parameter.text}`" for parameter in parameters.values())

    def line(thing: object) -> str:
        return (thing.__doc__ or "").splitlines()[0]

    folder = Path(__file__).with_name("_generated")
    folder.mkdir(exist_ok=True)
    rows = [("name", "what it is", "traits", "options")]
    for name in methods.METHODS:
        found = methods.find(name)
        traits = ["network" if found.needs_network else "outputs"]
        traits += ["state"] * found.stateful + ["ordered"] * found.ordered
        traits += ["looks ahead"] * (not found.causal)
        rows.append((f"`{name}`", found.line, ", ".join(traits), options(found.parameters())))
    (folder / "methods.md").write_text(table(*rows))
    rows = [("name", "what it is", "options")]
    rows += [(f"`{n}`", line(make), options(parameters_of(make))) for n, make in AFFINITIES.items()]
    (folder / "affinities.md").write_text(table(*rows))


_write_tables()
