"""supervision: smoothed classes of tracked detections."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import from_top_k, to_numpy
from lametta._checks import check_integer, check_number
from lametta.correctors import Streams
from lametta.methods import as_corrector
from lametta.taxonomy import Taxonomy
from lametta.types import Array, Corrector, LamettaError

if TYPE_CHECKING:
    from supervision import Detections

__all__ = ["ClassSmoother"]

PROBS, FEATURES, NAME = "class_probs", "features", "class_name"
_SOURCE = "source_"


@dataclass
class ClassSmoother:
    """Correct the class of each tracked object by its classes in the frames before.

    A companion of ``supervision.DetectionsSmoother``, which smooths boxes: call it once a frame,
    after the tracker. Every track is a stream of its own, corrected one frame at a time: an answer
    depends on this frame and those before it.

    Parameters
    ----------
    n_classes : int
        How many classes the detector has.
    corrector : str or Corrector
        What each track gets a copy of, or its name, such as ``"memory"``. The default differs from
        that of other streams, since a track shows one object: see `lametta.correctors.Track`.
    class_names : sequence of str, optional
        The names of the classes, for ``data["class_name"]``. Without them, names are those that
        came with each class so far, and a class that had none is called by its number.
    lost : int
        How many frames in a row a track may be missing before it is forgotten.
    most : int
        How many tracks are remembered; beyond that, the least recently seen is forgotten.
    reattach : float, optional
        The overlap (IoU) from which on a new track id goes on with the memory of a track that is
        missing, where that was last seen: trackers lose objects, and give them another id. By
        default no id does.
    switch : float
        How many times as probable as the class that a track has another must be to take its place.
        By default a track has the class that is likeliest in each frame; 1.5 lets it change less
        often, and later where it should.
    taxonomy : Taxonomy, optional
        What the classes are kinds of. Then ``data["taxon"]`` and ``data["taxon_confidence"]`` say
        for each detection the most exact part of it that is ``sure``: a species, or "animal".
    sure : float
        The confidence that such an answer needs.

    Examples
    --------
    >>> import numpy as np, supervision as sv
    >>> smoother = ClassSmoother(n_classes=3)
    >>> for class_id in (2, 2, 0):
    ...     detections = sv.Detections(
    ...         xyxy=np.array([[0, 0, 10, 10]]),
    ...         class_id=np.array([class_id]),
    ...         confidence=np.array([0.6]),
    ...         tracker_id=np.array([7]),
    ...     )
    ...     smoothed = smoother.update_with_detections(detections)
    >>> smoothed.class_id, smoothed.confidence.round(2), smoothed.data["source_class_id"]
    (array([2]), array([0.5]), array([0]))
    """

    n_classes: int
    corrector: str | Corrector = "track"
    class_names: Sequence[str] | None = None
    lost: int = 300
    most: int = 10_000
    reattach: float | None = None
    switch: float = 1.0
    taxonomy: Taxonomy | None = None
    sure: float = 0.8
    _streams: Streams = field(init=False, repr=False, compare=False)
    _seen: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _names: dict[int, object] = field(default_factory=dict, init=False, repr=False, compare=False)
    _boxes: dict[int, NDArray[np.float64]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _same: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _classes: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _frame: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_integer("n_classes", self.n_classes, 2)
        check_integer("lost", self.lost, 1)
        check_number("sure", self.sure, 0.5, 1)
        check_number("switch", self.switch, 1)
        if self.reattach is not None:
            check_number("reattach", self.reattach, 0, 1)
        if self.taxonomy is not None and len(self.taxonomy) != self.n_classes:
            got = len(self.taxonomy)
            raise LamettaError(f"taxonomy must have {self.n_classes} classes, got {got}")
        self._streams = Streams(as_corrector(self.corrector), most=self.most)
        if self.class_names is not None and len(self.class_names) != self.n_classes:
            raise LamettaError(
                f"class_names must be {self.n_classes} names, got {len(self.class_names)}"
            )

    def update_with_detections(
        self, detections: "Detections", *, probs: Array | None = None, features: Array | None = None
    ) -> "Detections":
        """Correct the classes of the next frame.

        Parameters
        ----------
        detections : supervision.Detections
            With ``tracker_id``. Detections whose id is negative belong to no track yet and keep
            their class and confidence; all of a frame without ids do, with a warning, and so does
            a track that brings NaN.
        probs : array [n, n_classes], optional
            The probabilities of all classes, by default ``data["class_probs"]``. Without either,
            ``class_id`` has its ``confidence``, and the other classes share the rest.
        features : array [n, d], optional
            What the corrector compares detections by, by default ``data["features"]``. Without
            either, the probabilities are used: the default corrector needs no features.

        Returns
        -------
        supervision.Detections
            The same detections in the same order, with the corrected ``class_id``, ``confidence``
            and, if it was there, ``data["class_name"]``. ``data`` keeps the detector's own under
            ``source_class_id``, ``source_confidence`` and ``source_class_name``, in frames without
            tracks, too: the results of all frames have the same keys.
        """
        if len(detections) and detections.tracker_id is None:
            warnings.warn("detections have no tracker_id and stay as they are", stacklevel=2)
        ids = np.empty(0, int) if detections.tracker_id is None else detections.tracker_id
        tracked = np.flatnonzero(ids >= 0)
        tracks = ids[tracked].tolist()
        if self.reattach is not None:
            tracks = self._reattached(tracks, np.asarray(detections.xyxy, float)[tracked])
        given = self._given("probs", detections, PROBS, probs)
        if given is not None and given.shape[1] != self.n_classes:
            raise LamettaError(f"probs must have {self.n_classes} columns, got {given.shape[1]}")
        answers: NDArray[np.floating] = np.empty((0, self.n_classes))
        classes: NDArray[np.intp] = np.empty(0, int)
        if tracks:
            vectors = self._given("features", detections, FEATURES, features)
            rows = self._rows(detections, tracked) if given is None else given[tracked]
            seen = rows if vectors is None else vectors[tracked]
            fine, answers = self._answers(seen, rows, tracks)
            classes = self._held([tracks[i] for i in fine], answers)
            tracked = tracked[fine]
        self._age(tracks)
        return self._corrected(detections, given, tracked, answers, classes)

    def reset(self) -> None:
        """Forget all tracks: for another video."""
        self._streams.reset()
        self._seen.clear()
        self._classes.clear()
        self._boxes.clear()
        self._same.clear()

    def _reattached(self, tracks: list[int], boxes: NDArray[np.floating]) -> list[int]:
        """The tracks that these ids go on with, each at most once: their own, or missing ones."""
        found = [self._same.get(track, track) for track in tracks]
        for i, track in enumerate(found):
            if track != tracks[i] and track in tracks:  # which is back under its own id
                del self._same[tracks[i]]
                found[i] = track = tracks[i]
            lost = None if track in self._seen else self._nearest_lost(boxes[i], found)
            if lost is not None:
                found[i] = self._same[track] = lost
        self._boxes |= {
            track: np.array(box, float) for track, box in zip(found, boxes, strict=True)
        }
        return found

    def _nearest_lost(self, box: NDArray[np.floating], found: list[int]) -> int | None:
        """The missing track whose last box overlaps this one most, and as much as it must."""
        missing = [one for one in self._boxes if one in self._seen and one not in found]
        overlaps = [_overlap(box, self._boxes[one]) for one in missing]
        if overlaps and max(overlaps) >= cast(float, self.reattach):
            return missing[int(np.argmax(overlaps))]
        return None

    @property
    def tracks(self) -> list[int]:
        """The ids of the tracks that are remembered, the least recently seen first."""
        return [int(track) for track in self._streams.ids]

    def _answers(
        self, features: Array, probs: Array, tracks: list[int]
    ) -> tuple[list[int], NDArray[np.floating]]:
        """The places of the tracks that were not refused, and their probabilities."""
        for track in tracks:
            if track not in self._streams:  # it is new, or was forgotten for others
                self._classes.pop(track, None)
        found = self._streams.correct(features, probs, tracks)
        fine = [i for i, track in enumerate(tracks) if track not in found.errors]
        return fine, np.asarray(found.probs)[fine]

    def _held(self, tracks: list[int], answers: NDArray[np.floating]) -> NDArray[np.intp]:
        """The class that each track has now."""
        classes = []
        for track, row in zip(tracks, answers, strict=True):
            before = self._classes.get(track)
            self._classes[track] = next_class(row, before, self.switch)
            classes.append(self._classes[track])
        return np.array(classes, int)

    def _age(self, tracks: list[int]) -> None:
        """Count a frame, and forget tracks that were missing for too long."""
        self._frame += 1
        self._seen.update(dict.fromkeys(tracks, self._frame))
        for track in [one for one, at in self._seen.items() if self._frame - at > self.lost]:
            del self._seen[track]
            self._streams.forget(track)
            self._boxes.pop(track, None)
            self._classes.pop(track, None)
            self._same = {new: old for new, old in self._same.items() if old != track}

    def _given(
        self, name: str, detections: "Detections", key: str, given: Array | None
    ) -> NDArray[np.floating] | None:
        found = detections.data.get(key) if given is None else given
        if found is None:
            return None
        rows = np.asarray(to_numpy(found))
        if rows.dtype.kind != "f" or rows.ndim != 2 or len(rows) != len(detections):
            raise LamettaError(
                f"{name} must be floats with a row for each of {len(detections)} detections, got "
                f"{rows.dtype} {list(rows.shape)}"
            )
        return rows

    def _rows(self, detections: "Detections", tracked: NDArray[np.intp]) -> NDArray[np.float64]:
        """Rows of probabilities from the class and its confidence alone."""
        classes, shares = detections.class_id, detections.confidence
        if classes is None or shares is None:
            missing = "class_id" if classes is None else "confidence"
            raise LamettaError(f"detections must have {missing} or probs, got neither")
        rows = []
        for one, share in zip(classes[tracked].tolist(), shares[tracked].tolist(), strict=True):
            if not 0 <= one < self.n_classes:
                raise LamettaError(
                    f"detections.class_id must lie in 0..{self.n_classes - 1}, got {one}"
                )
            check_number("detections.confidence", share, 0, 1)
            rows.append(from_top_k(self.n_classes, [one], [share]))
        return np.array(rows)

    def _corrected(
        self,
        detections: "Detections",
        given: NDArray[np.floating] | None,
        tracked: NDArray[np.intp],
        answers: NDArray[np.floating],
        classes: NDArray[np.intp],
    ) -> "Detections":
        data: dict[str, Any] = dict(detections.data)
        changed: dict[str, Any] = {}
        found = {"class_id": classes, "confidence": answers[np.arange(len(classes)), classes]}
        for name, values in found.items():
            before = getattr(detections, name)
            if before is None and given is not None:
                before = given.argmax(axis=1) if name == "class_id" else given.max(axis=1)
            if before is not None:
                data.setdefault(_SOURCE + name, before)
                changed[name] = before.copy()
                changed[name][tracked] = values
        if (names := data.get(NAME)) is not None:
            data.setdefault(_SOURCE + NAME, names)
            if "class_id" in changed:
                self._rename(data, tracked, classes)
        if self.taxonomy is not None:
            self._add_taxa(data, detections, given, tracked, answers)
        return replace(detections, **changed, data=data)

    def _add_taxa(
        self,
        data: dict[str, Any],
        detections: "Detections",
        given: NDArray[np.floating] | None,
        tracked: NDArray[np.intp],
        answers: NDArray[np.floating],
    ) -> None:
        """Say what each detection is, as exactly as is sure: the others by their own outputs."""
        taxonomy = cast(Taxonomy, self.taxonomy)
        probs = self._rows(detections, np.arange(len(detections))) if given is None else given
        probs = np.array(probs, dtype=float).reshape(-1, self.n_classes)
        probs[tracked] = answers
        taxa = taxonomy.answer(probs, sure=self.sure)
        data["taxon"] = np.array([taxon.name for taxon in taxa], dtype=str)
        data["taxon_confidence"] = np.array([taxon.confidence for taxon in taxa], dtype=float)

    def _rename(
        self, data: dict[str, Any], tracked: NDArray[np.intp], classes: NDArray[np.intp]
    ) -> None:
        """Let names follow the corrected classes."""
        before = data[NAME]
        for one, name in zip(
            data[_SOURCE + "class_id"].tolist(), data[_SOURCE + NAME], strict=True
        ):
            self._names.setdefault(one, name)
        names = list(before)
        for i, one in zip(tracked.tolist(), classes.tolist(), strict=True):
            names[i] = self._name(one)
        if isinstance(before, np.ndarray):
            data[NAME] = np.array(names, None if names else before.dtype)
        else:
            data[NAME] = names

    def _name(self, one: int) -> object:
        if self.class_names is not None:
            return self.class_names[one]
        return self._names.get(one, str(one))


def next_class(probs: NDArray[np.floating], before: int | None, switch: float) -> int:
    """The likeliest class, if it is ``switch`` times as probable as the one that a track has."""
    likeliest = int(probs.argmax())
    return likeliest if before is None or probs[likeliest] >= switch * probs[before] else before


def _overlap(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """The intersection of two boxes x, y, x, y over their union."""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    both = float(np.prod(np.clip(sides, 0, None)))
    every = float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2])) - both
    return both / every if every > 0 else 0.0
