"""Make lametta's copy of the nouns of WordNet 3.0 from the database that Debian packages.

    apt-get install wordnet-base
    python scripts/make_wordnet.py

In the result a line is a synset: its id, its hypernyms in WordNet's order (``n`` and a number, or
``i`` and a number if it is an instance of that one, not a kind) and its words, a word of several
senses with the number of this one. The bytes depend on the database and on liblzma alone.
The classes in ``imagenet.txt``, one synset id a line, get their names from the same database.
"""

import argparse
import lzma
from collections.abc import Iterator
from pathlib import Path

ASSETS = Path(__file__).parents[1] / "src" / "lametta" / "data" / "assets"

_HYPERNYMS = {"@": "n", "@i": "i"}  # is a kind of, is an instance of


def main() -> None:
    """Write the nouns and their license, and name the classes of ImageNet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("database", type=Path, nargs="?", default="/usr/share/wordnet")
    parser.add_argument("-o", "--output", type=Path, default=ASSETS)
    options = parser.parse_args()
    (options.output / "WORDNET-LICENSE").write_text(license_text(options.database))
    nouns = list(synset_lines(options.database))
    text = "".join(f"{line}\n" for line in nouns)
    packed = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
    (options.output / "wordnet-nouns.txt.xz").write_bytes(packed)
    classes = options.output / "imagenet.txt"
    classes.write_text("".join(f"{line}\n" for line in named(classes.read_text(), nouns)))


def synset_lines(database: Path) -> Iterator[str]:
    """The synsets in the order of their ids."""
    senses = dict(_senses(database / "index.noun"))
    for line in _records(database / "data.noun"):
        # offset, file, type, number of words (hexadecimal), words, number of pointers, pointers
        fields = line.split(" | ")[0].split()
        offset, n_words = fields[0], int(fields[3], 16)
        words, pointers = fields[4 : 4 + 2 * n_words : 2], fields[5 + 2 * n_words :]
        hypernyms = [
            f"{_HYPERNYMS[symbol]}{target}"
            for symbol, target in zip(pointers[::4], pointers[1::4], strict=True)
            if symbol in _HYPERNYMS
        ]
        yield "\t".join(
            (
                f"n{offset}",
                " ".join(hypernyms),
                " ".join(_numbered(word, offset, senses[word.lower()]) for word in words),
            )
        )


def license_text(database: Path) -> str:
    """The license, which stands in numbered lines before the records."""
    with (database / "data.noun").open(encoding="ascii") as file:
        lines = [line[2:].partition(" ")[2].rstrip() for line in file if line.startswith("  ")]
    text = "\n".join(lines) + "\n"
    if "WordNet 3.0 Copyright" not in text:
        raise SystemExit(f"database must be WordNet 3.0, as ImageNet's synsets are, got {database}")
    return text


def named(classes: str, nouns: list[str]) -> Iterator[str]:
    """Each class, with the first word of its synset for a name."""
    words = {line[:9]: line.split("\t")[2].split()[0].partition(":")[0] for line in nouns}
    for line in classes.splitlines():
        yield f"{line[:9]}\t{words[line[:9]].replace('_', ' ')}"


def _senses(index: Path) -> Iterator[tuple[str, list[str]]]:
    """Each word in lower case and the offsets of its synsets, the most frequent sense first."""
    for line in _records(index):
        fields = line.split()
        yield fields[0], fields[-int(fields[2]) :]


def _numbered(word: str, offset: str, senses: list[str]) -> str:
    return word if len(senses) == 1 else f"{word}:{senses.index(offset) + 1}"


def _records(path: Path) -> Iterator[str]:
    with path.open(encoding="ascii") as file:
        yield from (line for line in file if not line.startswith("  "))


if __name__ == "__main__":
    main()
