"""Sphinx's configuration."""

import re
import sys
from pathlib import Path

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
html_js_files = ["copy.js"]
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


# Each public name has a page of its own: what docs/api.md says of it in Sphinx's words moves there,
# and the tables, which readers of the Markdown see too, lead to it.
ENTRY = re.compile(
    r"^\.\. (auto(?:class|function|exception)):: (\S+)\n((?:   .*\n)*)", re.MULTILINE
)
MODULE = re.compile(r"^\.\. currentmodule:: (\S+)$", re.MULTILINE)


def write_entries(app):
    folder, module, text = (
        Path(app.srcdir, "api"),
        "lametta",
        Path(app.srcdir, "api.md").read_text(),
    )
    folder.mkdir(exist_ok=True)
    pages = {}
    for found in re.finditer(f"{MODULE.pattern}|{ENTRY.pattern}", text, re.MULTILINE):
        home, directive, name, options = found.groups()
        module = home or module
        if name:
            full = name if name.startswith("lametta.") else f"{module}.{name}"
            rule = "=" * len(full)
            pages[f"{full}.rst"] = f"{full}\n{rule}\n\n.. {directive}:: {full}\n{options}"
    for old in {file.name for file in folder.glob("*.rst")} - pages.keys():
        (folder / old).unlink()
    for name, page in pages.items():
        file = folder / name
        if not file.exists() or file.read_text() != page:  # Sphinx goes by the time of a change
            file.write_text(page)


def leave_entries_out(app, page, source):
    if page == "api":
        text = ENTRY.sub("", source[0])
        source[0] = re.sub(r"(?m)^\| `(lametta\.[\w.]+)`", r"| {py:obj}`\1`", text)


# Links into the references of others, by name: their inventories would have to be fetched.
NUMPY, TORCH = "https://numpy.org/doc/stable/reference", "https://docs.pytorch.org/docs/stable"
ELSEWHERE = {
    "array": "https://data-apis.org/array-api/latest/API_specification/array_object.html",
    "numpy.ndarray": f"{NUMPY}/generated/numpy.ndarray.html",
    "np.asarray": f"{NUMPY}/generated/numpy.asarray.html",
    "numpy.random.Generator": f"{NUMPY}/random/generator.html",
    "torch.Generator": f"{TORCH}/generated/torch.Generator.html",
    "torch.Tensor": f"{TORCH}/tensors.html#torch.Tensor",
    "torch.compile": f"{TORCH}/generated/torch.compile.html",
    "torch.device": f"{TORCH}/tensor_attributes.html#torch.device",
    "torch.nn.Module": f"{TORCH}/generated/torch.nn.Module.html",
    "torch.optim.AdamW": f"{TORCH}/generated/torch.optim.AdamW.html",
    "torch.save": f"{TORCH}/generated/torch.save.html",
}
TYPES = re.compile(rf"(?<![\w.`])({'|'.join(map(re.escape, ELSEWHERE))})(?![\w.`])")


def link_types(app, what, name, obj, options, lines):
    for i, line in enumerate(lines):
        if (found := re.fullmatch(r"(\s*\*{0,2}\w[\w, *]* : )(.+)", line)) is not None:
            lines[i] = found[1] + TYPES.sub(r"`\1`", found[2])


def find_elsewhere(app, env, node, shown):
    if (address := ELSEWHERE.get(node["reftarget"])) is not None:
        return nodes.reference("", "", shown, refuri=address, internal=False)
    return None


# The notebooks of docs/notebooks.md, to be downloaded; their sources are in examples/notebooks.
def write_notebooks(app):
    sys.path.insert(0, str(Path(app.srcdir).parent))
    from scripts import notebooks

    notebooks.write(Path(app.srcdir, "notebooks"))


def setup(app):
    app.connect("builder-inited", write_notebooks)
    app.connect("builder-inited", write_entries)
    app.connect("source-read", uncomment)
    app.connect("source-read", leave_entries_out)
    app.connect("autodoc-process-docstring", link_types, priority=1)  # before napoleon
    app.connect("missing-reference", find_elsewhere)
    app.add_html_math_renderer("mathml", (write_inline, None), (write_block, None))
