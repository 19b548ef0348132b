"""The ``lametta`` command, or what to install for it."""

import io
import sys


def main() -> None:
    """Run the command, or say what to install for it."""
    try:
        from lametta.cli import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("lametta"):
            raise
        from lametta._checks import extra

        sys.exit(f"lametta: the command needs {error.name!r}: pip install {extra('cli')}")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # names that a terminal cannot show
    app()


if __name__ == "__main__":
    main()
