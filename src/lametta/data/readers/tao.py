"""TAO-LaSOT: the frames of TAO that come from LaSOT."""

import json
from collections.abc import Mapping
from pathlib import Path

from lametta._checks import check_choice
from lametta._files import PathLike
from lametta.classmap import ClassMap
from lametta.data.classes.wordnet import ancestral_map, resolve
from lametta.data.dataset import Dataset
from lametta.data.readers.images import image_dataset, natural_key
from lametta.data.readers.layout import Entry, Layout, settle
from lametta.types import LamettaError

LAYOUT = Layout(("TAO",), ("annotations", "frames"))


def tao_lasot(root: PathLike, *, broken: str = "raise") -> Dataset:
    """TAO's frames from LaSOT, of the training and the validation videos.

    Reads ``TAO/annotations/trainval.json``, or ``train.json`` and ``validation.json`` there, and
    ``TAO/frames/<train or val>/LaSOT/<video>/<frame>``. The classes are the synsets of the
    objects in these frames that ImageNet's classes map to, in sorted order. A frame is kept if it
    has objects of these classes and all are of one class, which is its label. The group of a frame
    is its video, named by the folder.

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
    objects: dict[str, set[str]] = {}
    for file in _files(folder / "annotations"):
        objects |= _read(file)
    if not objects:
        raise LamettaError(f"{folder} must hold annotated frames from LaSOT, found none")
    class_map, labels = _label(objects)
    missing = [path for path in labels if not (folder / "frames" / path).is_file()]
    skipped = settle(broken, [(path, "no such file") for path in missing], folder / "frames")
    paths = sorted(labels.keys() - set(skipped), key=natural_key)
    return image_dataset(
        "tao_lasot",
        folder / "frames",
        paths,
        [labels[path] for path in paths],
        class_map.names,
        [path.rpartition("/")[0] for path in paths],
        class_map=class_map,
        skipped=skipped,
    )


ENTRIES = {
    "tao_lasot": Entry(
        "TAO-LaSOT, videos of the classes that ImageNet's map to",
        "TAO/annotations/{train,validation}.json, TAO/frames/{train,val}/LaSOT/<video>/*.jpg",
        tao_lasot,
        LAYOUT,
    )
}


def _files(folder: Path) -> list[Path]:
    """The merged file, or the two that it would be merged from."""
    merged = folder / "trainval.json"
    if merged.is_file():
        return [merged]
    parts = [folder / "train.json", folder / "validation.json"]
    for part in parts:
        if not part.is_file():
            raise LamettaError(
                f"{folder} must hold trainval.json, or train.json and validation.json, "
                f"got no {part.name}"
            )
    return parts


def _read(file: Path) -> dict[str, set[str]]:
    """For each frame from LaSOT the synsets of its objects.

    One file at a time: what has the number 7 in one may be something else in the other.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        synsets = {row["id"]: _rename(row["synset"]) for row in content["categories"]}
        paths = {row["id"]: row["file_name"] for row in content["images"]}
        objects: dict[str, set[str]] = {}
        for row in content["annotations"]:
            path = paths[row["image_id"]]
            if path.split("/")[1] == "LaSOT":
                objects.setdefault(path, set()).add(synsets[row["category_id"]])
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise LamettaError(
            f"{file} must be JSON with TAO's images, categories and annotations, "
            f"got {type(error).__name__}: {error}"
        ) from error
    return objects


def _label(objects: Mapping[str, set[str]]) -> tuple[ClassMap, dict[str, int]]:
    """Map ImageNet onto the objects' synsets, and label each frame whose objects agree."""
    synsets = sorted(set().union(*objects.values()))
    class_map = ancestral_map(list(filter(_in_wordnet, synsets)), drop_empty=True)
    numbers = {synset: i for i, synset in enumerate(class_map.names)}
    labels = {}
    for path, found in objects.items():
        kept = {numbers[synset] for synset in found if synset in numbers}
        if len(kept) == 1:
            labels[path] = kept.pop()
    return class_map, labels


def _rename(synset: str) -> str:
    return "street_sign.n.01" if "stop_sign" in synset else synset  # WordNet has no stop sign


def _in_wordnet(synset: str) -> bool:
    try:
        resolve(synset)
    except LamettaError:  # a name of LVIS's own, which no class of ImageNet is a kind of
        return False
    return True
