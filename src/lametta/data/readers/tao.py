"""TAO-LaSOT: the frames of TAO that come from LaSOT."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lametta._checks import check_choice
from lametta._files import PathLike
from lametta.classmap import ClassMap
from lametta.data.classes.wordnet import ancestral_map, load_wordnet, resolve
from lametta.data.dataset import Dataset
from lametta.data.readers.images import image_dataset, natural_key
from lametta.data.readers.layout import Entry, Layout, compare_counts, raise_or_skip
from lametta.types import LamettaError

_PUBLISHED = {"frames": 6_558, "classes": 76}  # by the paper


def _files(folder: Path) -> list[Path]:
    """The merged file, or the two that it would be merged from; an error without them."""
    merged = folder / "trainval.json"
    if merged.is_file():
        return [merged]
    parts = [folder / "train.json", folder / "validation.json"]
    for part in parts:
        if not part.is_file():
            raise LamettaError(
                f"no such file: {str(part)!r}; {folder} must hold trainval.json, or train.json and "
                "validation.json"
            )
    return parts


LAYOUT = Layout(
    ("TAO",), ("annotations", "frames"), check=lambda folder: _files(folder / "annotations")
)


def tao_lasot(root: PathLike, *, broken: str = "raise") -> Dataset:
    """TAO's frames from LaSOT, of the training and the validation videos.

    Reads ``TAO/annotations/trainval.json``, or ``train.json`` and ``validation.json`` there, which
    are merged by ids, and ``TAO/frames/<train or val>/LaSOT/<video>/<frame>``. The classes are the
    synsets of the objects in these frames that ImageNet's classes map to, in sorted order; one that
    ImageNet's hierarchy lacks is taken for the nearest that it has. A frame is kept if it has
    objects of these classes and all are of one class, which is its label. The group of a frame is
    its video, named by the folder.

    Parameters
    ----------
    root : path
        The data root.
    broken : {"raise", "skip"}
        What to do about annotated frames that are not on disk: count them in an error, or list
        them as ``skipped``.

    Examples
    --------
    >>> import tempfile
    >>> content = {
    ...     "images": [{"id": 1, "file_name": "train/LaSOT/zebra-1/frame0001.jpg"}],
    ...     "categories": [{"id": 7, "synset": "zebra.n.01"}],
    ...     "annotations": [{"image_id": 1, "category_id": 7}],
    ... }
    >>> with tempfile.TemporaryDirectory() as root:
    ...     frame = Path(root, "TAO/frames", content["images"][0]["file_name"])
    ...     frame.parent.mkdir(parents=True)
    ...     frame.touch()
    ...     Path(root, "TAO/annotations").mkdir()
    ...     _ = Path(root, "TAO/annotations/trainval.json").write_text(json.dumps(content))
    ...     data = tao_lasot(root)
    >>> data.classes, data.labels, data.class_map.groups
    (('zebra.n.01',), array([0]), ((340,),))
    """
    check_choice("broken", broken, ("raise", "skip"))
    folder = LAYOUT.find(root)
    objects = _merge([_read(file) for file in _files(folder / "annotations")])
    if not objects:
        raise LamettaError(f"no annotated frames from LaSOT in {folder}")
    class_map, labels = _label(objects)
    frames, classes = folder / "frames", class_map.names
    missing = [path for path in labels if not (frames / path).is_file()]
    skipped = raise_or_skip(broken, [(path, "no such file") for path in missing], frames)
    paths = sorted(labels.keys() - set(skipped), key=natural_key)
    numbers = [labels[path] for path in paths]
    groups = [path.rpartition("/")[0] for path in paths]
    data = image_dataset("tao_lasot", frames, paths, numbers, classes, groups)
    differs = compare_counts({"frames": len(paths), "classes": len(classes)}, _PUBLISHED)
    return replace(data, class_map=class_map, skipped=skipped, differs=differs)


ENTRIES = {
    "tao_lasot": Entry(
        "TAO-LaSOT, videos of the classes that ImageNet's map to",
        "TAO/annotations/{train,validation}.json, TAO/frames/{train,val}/LaSOT/<video>/*.jpg",
        tao_lasot,
        LAYOUT,
        _PUBLISHED["frames"],
    )
}


class _Content(NamedTuple):
    """What is needed of a file: paths and synsets by id, and the pairs of ids of objects."""

    file: Path
    paths: dict[int, str]
    synsets: dict[int, str]
    objects: list[tuple[int, int]]


def _read(file: Path) -> _Content:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        synsets = {row["id"]: _rename(row["synset"]) for row in content["categories"]}
        paths = {row["id"]: row["file_name"] for row in content["images"]}
        objects = [(row["image_id"], row["category_id"]) for row in content["annotations"]]
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise _broken(file, error) from error
    return _Content(file, paths, synsets, objects)


def _merge(contents: Sequence[_Content]) -> dict[str, set[str]]:
    """For each frame from LaSOT the synsets of its objects.

    An id is looked up in its own file first, then in the others: files may share ids, or use the
    same ones for different things.
    """
    merged: dict[str, set[str]] = {}
    paths = {number: path for content in contents for number, path in content.paths.items()}
    synsets = {number: name for content in contents for number, name in content.synsets.items()}
    for content in contents:
        own_paths, own_synsets = paths | content.paths, synsets | content.synsets
        try:
            for image, category in content.objects:
                path = own_paths[image]
                if path.split("/")[1] == "LaSOT":
                    merged.setdefault(path, set()).add(own_synsets[category])
        except (AttributeError, LookupError) as error:
            raise _broken(content.file, error) from error
    return merged


def _broken(file: Path, error: Exception) -> LamettaError:
    return LamettaError(
        f"{file} must be JSON with TAO's images, categories and annotations, "
        f"got {type(error).__name__}: {error}"
    )


def _label(objects: Mapping[str, set[str]]) -> tuple[ClassMap, dict[str, int]]:
    """Map ImageNet onto the objects' synsets, and label each frame whose objects agree."""
    names = sorted(set().union(*objects.values()))
    ids = {name: synset for name in names if (synset := _synset(name)) is not None}
    targets: dict[str, str] = {}
    for name, synset in ids.items():
        targets.setdefault(synset, name)  # the first of two names for one synset
    class_map = ancestral_map({name: synset for synset, name in targets.items()}, drop_empty=True)
    numbers = {name: i for i, name in enumerate(class_map.names)}
    labels = {}
    for path, found in objects.items():
        called = {targets[ids[name]] for name in found if name in ids}
        kept = called & numbers.keys()
        if len(kept) == 1:
            labels[path] = numbers[kept.pop()]
    return class_map, labels


def _rename(synset: str) -> str:
    return "street_sign.n.01" if "stop_sign" in synset else synset  # WordNet has no stop sign


def _synset(name: str) -> str | None:
    """The nearest synset that is in ImageNet's hierarchy; None for what WordNet does not have."""
    try:
        return load_wordnet().nearest_kind(resolve(name).synset)
    except LamettaError:  # a name of LVIS's own, which no class of ImageNet is a kind of
        return None
