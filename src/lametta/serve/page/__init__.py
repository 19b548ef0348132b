"""The live page: plain files, no host but this one."""

from importlib.resources import files

_KINDS = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
}


def asset(name: str) -> tuple[bytes, str] | None:
    """The content and the type of one of the page's files; None if there is no such file.

    Examples
    --------
    >>> content, kind = asset("index.html")
    >>> kind
    'text/html; charset=utf-8'
    """
    if name not in _KINDS:
        return None
    return files(__package__).joinpath(name).read_bytes(), _KINDS[name]
