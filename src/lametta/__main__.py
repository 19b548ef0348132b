"""The ``lametta`` command; its dependencies come with the extra ``cli``."""

import sys


def main() -> None:
    """Run the command, or say what to install for it."""
    try:
        from lametta.cli import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("lametta"):
            raise
        sys.exit(f"lametta: the command needs {error.name!r}: pip install 'lametta[cli]'")
    app()


if __name__ == "__main__":
    main()
