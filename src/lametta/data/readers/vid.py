"""ImageNet-VID: frames of videos with objects of 30 classes."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from lametta._checks import check_choice
from lametta._files import PathLike
from lametta.data.classes.imagenet import VID, VID_ANNOTATIONS
from lametta.data.classes.wordnet import ancestral_map
from lametta.data.dataset import Dataset
from lametta.data.readers.images import image_dataset, natural_key
from lametta.data.readers.layout import Entry, Layout, compare_counts, raise_or_skip
from lametta.types import LamettaError

LAYOUT = Layout(("ILSVRC2015",), ("Data/VID/val", "Annotations/VID/val"))

_LABELS = {synset: i for i, synset in enumerate(VID_ANNOTATIONS.values())}
_PUBLISHED = {"videos": 555, "frames": 176_126}  # all there are, of which some are left out here
_MAX_BYTES = 1 << 20  # an annotation has about one kilobyte; what is far larger is none


def imagenet_vid(root: PathLike, *, broken: str = "raise") -> Dataset:
    """ImageNet-VID's validation videos, one frame a sample.

    Reads ``ILSVRC2015/Data/VID/val/<video>/<frame>.JPEG`` and
    ``ILSVRC2015/Annotations/VID/val/<video>/<frame>.xml``. A frame is kept if it has objects of
    the 30 classes and all of these are of one class, which is its label. The group of a frame is
    its video.

    Parameters
    ----------
    root : path
        The data root.
    broken : {"raise", "skip"}
        What to do about frames whose annotation cannot be read, or that lack it or the image:
        count them in an error, or list them as ``skipped``.

    Examples
    --------
    >>> import tempfile
    >>> xml = "<annotation><object><name>n02084071</name></object></annotation>"
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for kind in ("Data", "Annotations"):
    ...         Path(root, "ILSVRC2015", kind, "VID/val/video_1").mkdir(parents=True)
    ...     Path(root, "ILSVRC2015/Data/VID/val/video_1/000000.JPEG").touch()
    ...     _ = Path(root, "ILSVRC2015/Annotations/VID/val/video_1/000000.xml").write_text(xml)
    ...     data = imagenet_vid(root)
    >>> data.classes[data.labels[0]], str(data.groups[0])
    ('dog', 'video_1')
    """
    check_choice("broken", broken, ("raise", "skip"))
    images, annotations = (LAYOUT.find(root) / part for part in LAYOUT.inside)
    paths, labels, failures = [], [], []
    frames = _frames(images, annotations)
    for frame in frames:
        try:
            label = _label(images / f"{frame}.JPEG", annotations / f"{frame}.xml")
        except (OSError, ElementTree.ParseError, LookupError, ValueError) as error:
            failures.append((f"{frame}.JPEG", str(error)))
        else:
            if label is not None:
                paths.append(f"{frame}.JPEG")
                labels.append(label)
    skipped = raise_or_skip(broken, failures, images)
    videos = {frame.partition("/")[0] for frame in frames}
    if not paths:
        raise LamettaError(f"no <video>/<frame>.xml with objects in {annotations}")
    groups = [path.partition("/")[0] for path in paths]
    data = image_dataset("imagenet_vid", images, paths, labels, tuple(VID), groups)
    differs = compare_counts({"videos": len(videos), "frames": len(frames)}, _PUBLISHED)
    return replace(data, class_map=ancestral_map(VID), skipped=skipped, differs=differs)


ENTRIES = {
    "imagenet_vid": Entry(
        "ImageNet-VID, validation videos of 30 classes",
        "ILSVRC2015/{Data,Annotations}/VID/val/<video>/<frame>.{JPEG,xml}",
        imagenet_vid,
        LAYOUT,
        _PUBLISHED["frames"],
    )
}


def _frames(images: Path, annotations: Path) -> list[str]:
    """``<video>/<frame>`` of all that have an image or an annotation, in natural order."""
    found = {
        f"{video.name}/{file.stem}"
        for folder, suffix in ((images, ".JPEG"), (annotations, ".xml"))
        for video in folder.iterdir()
        if video.is_dir()
        for file in video.iterdir()
        if file.suffix == suffix
    }
    return sorted(found, key=natural_key)


def _label(image: Path, annotation: Path) -> int | None:
    """The one class of a frame's objects; None where they have none or several."""
    if not image.is_file():
        raise LamettaError("no image")
    if annotation.stat().st_size > _MAX_BYTES:
        raise LamettaError(f"annotation larger than {_MAX_BYTES} bytes")
    tree = ElementTree.parse(annotation).getroot()
    if tree.tag != "annotation":
        raise LamettaError(f"annotation must be in <annotation>, got <{tree.tag}>")
    names = {name.text for name in tree.iterfind("object/name")}
    found = {_LABELS[name] for name in names if name in _LABELS}
    return found.pop() if len(found) == 1 else None
