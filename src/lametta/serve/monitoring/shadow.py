"""Shadow record: where corrections that were not given would have differed, by class and stream."""

from collections import OrderedDict, deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lametta.correctors.shadow import Differences

_STREAMS = 1024  # whose counts are kept, those heard last
_SHOWN = 64  # classes and streams that are shown, those that differ most often
_LAST = 64  # differences that are kept
_LONGEST = 120  # letters that are shown of the name of a stream


@dataclass
class _Stream:
    samples: int = 0
    changed: int = 0


class ShadowRecord:
    """Differences of one model since the server's start, in bounded memory; not thread-safe.

    Examples
    --------
    >>> record = ShadowRecord()
    >>> record.add(0.0, "door", np.array([[0.6, 0.4]]), np.array([[0.3, 0.7]]))
    >>> said = record.snapshot()
    >>> said["changed"], said["streams"], said["classes"][0]["lost"]
    (1, [{'id': 'door', 'samples': 1, 'changed': 1}], 1)
    """

    def __init__(self) -> None:
        self.failed = 0  # corrections that could not be made; the network's answer was given
        self._differences = Differences(size=1)
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._last: deque[dict[str, object]] = deque(maxlen=_LAST)

    def add(
        self,
        now: float,
        stream: str | None,
        source: NDArray[np.floating],
        corrected: NDArray[np.floating],
    ) -> None:
        """Count the samples of one request, by probabilities [N, K]."""
        before = self._differences.changed
        self._differences.add(source, corrected)
        changed = max(self._differences.changed - before, 0)  # begins anew with other classes
        if stream is not None:
            one = self._streams.pop(stream, None) or _Stream()
            self._streams[stream] = one  # as the last
            if len(self._streams) > _STREAMS:
                self._streams.popitem(last=False)
            one.samples += len(source)
            one.changed += changed
        if not changed:
            return
        labels, others = source.argmax(axis=1), corrected.argmax(axis=1)
        for row in np.flatnonzero(labels != others)[-_LAST:].tolist():
            self._last.append(
                {
                    "time": now,
                    "stream": None if stream is None else _shown(stream),
                    "source": int(labels[row]),
                    "corrected": int(others[row]),
                    "source_confidence": round(float(source[row, labels[row]]), 4),
                    "confidence": round(float(corrected[row, others[row]]), 4),
                }
            )

    def snapshot(self) -> dict[str, object]:
        """All of it as plain numbers; of classes and streams those that differ most often."""
        found = self._differences
        lost, gained = found.lost, found.gained
        most = np.argsort(-(lost + gained), kind="stable")[:_SHOWN].tolist()
        streams = sorted(self._streams.items(), key=lambda item: -item[1].changed)[:_SHOWN]
        return {
            "samples": found.samples,
            "changed": found.changed,
            "failed": self.failed,
            "classes": [
                {
                    "class": label,
                    "source": int(found.source[label]),
                    "corrected": int(found.corrected[label]),
                    "lost": int(lost[label]),
                    "gained": int(gained[label]),
                }
                for label in most
                if lost[label] + gained[label]
            ],
            "streams": [
                {"id": _shown(name), "samples": one.samples, "changed": one.changed}
                for name, one in streams
            ],
            "last": list(self._last),
        }


def _shown(name: str) -> str:
    return name if len(name) <= _LONGEST else name[:_LONGEST] + "…"
