"""The live page: plain files, no host but this one.

They hold no data and may be given without a token: the page asks for one where ``status.json`` is
refused with 401. All its addresses are relative, and ``default-src 'self'`` is all that it needs of
a Content-Security-Policy.
"""

from importlib.resources import files

_KINDS = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


def asset(name: str) -> tuple[bytes, str] | None:
    """The content and the type of one of the page's files; None if there is no such file.

    Examples
    --------
    >>> content, kind = asset("index.html")
    >>> kind
    'text/html; charset=utf-8'
    >>> asset("../monitor.py") is None
    True
    """
    if name not in _KINDS:
        return None
    return files(__package__).joinpath(name).read_bytes(), _KINDS[name]
