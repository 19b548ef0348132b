"""Foresight: how well a run's answers say, beyond chance, what the next sample will look like.

Who knows the class of this sample knows more of the next, where classes stay for a while; and of
two views of a class that err independently, each tells how well informed the other is. So where a
stream stays with its classes, one run can be told to be better than another without labels. Not
in videos, whose frames err together, nor where something else than classes makes the order.
"""

from collections.abc import Sequence

import numpy as np

from lametta.bench.trial.runs import Index, Outputs, Run
from lametta.bench.trial.stream import Look

GAINED = (0.05, 0.4, 1.0)
"""The least, usual and most of r (as `lametta.bench.trial.gains` has it) of such a run."""

_MORE, _CLEAR = 0.03, 2.0  # foresight by which it is more, and in standard deviations of chance
_SHARE = 0.9  # of the foresight of answers without a memory, that Prudent's must be below
_STAYS = (0.2, 0.05)  # foresight that the network's own answers, and those, must have
_COPIES = 0.3  # share of near-copies beyond which it is no sign
_EVIDENCE = 0.15  # nats a sample of order that a memory takes

_WITH_MEMORY = ("smoothing", "track")  # which follow what came, one class at a time
_WITHOUT = ("neo",)  # which answer each sample by itself, but for slow statistics


def foresight(answers: Index, view: Index, streams: Sequence[Index], n_classes: int) -> float:
    """How often an answer is what the next sample is seen as, from 0 (by chance) to 1.

    Cohen's kappa of ``answers`` and the ``view`` of the sample after, each stream by itself.

    Examples
    --------
    >>> stays = np.repeat([0, 1], 50)
    >>> round(foresight(stays, stays, [np.arange(100)], 2), 2)
    0.98
    >>> changes = np.tile([0, 1], 50)
    >>> round(foresight(changes, changes, [np.arange(100)], 2), 2)
    -1.0
    """
    alike = room = 0.0
    for rows in streams:
        now, then = answers[rows[:-1]], view[rows[1:]]
        if not len(now):
            continue
        shares = [np.bincount(x, minlength=n_classes) / len(x) for x in (now, then)]
        chance = float(shares[0] @ shares[1])
        alike += len(now) * (float((now == then).mean()) - chance)
        room += len(now) * (1 - chance)
    return alike / room if room > 0 else 0.0


def foreseeing(outputs: Outputs, runs: Sequence[Run], look: Look) -> list[Run]:
    """The runs that foresee clearly more than Prudent, one by one, the best of them first.

    A method without a memory of answers is one where its own answers stay more than the network's,
    and foresee each other better than Prudent's do: the network has collapsed, and the classes are
    there. One with a memory is one where it foresees more of the network's own answers.
    """
    alone = {run.candidate.method: run for run in runs if run.candidate.batch_size == 1}
    prudent = alone.get("prudent")
    if prudent is None or look.copies is None or look.copies > _COPIES:
        return []
    without, with_memory = (
        [alone[method] for method in kind if method in alone] for kind in (_WITHOUT, _WITH_MEMORY)
    )
    found = _freed(outputs, prudent, without)
    if not found and _ordered_by_classes(look):
        found = _remembering(outputs, prudent, with_memory)
    return [run for _, run in sorted(found, key=lambda one: -one[0])]


def _freed(outputs: Outputs, prudent: Run, runs: Sequence[Run]) -> list[tuple[float, Run]]:
    """Runs whose own answers stay where the network's collapsed, and how much more they foresee."""
    own, found = _seen(outputs, outputs.before, outputs.before), []
    for run in runs:
        freed = _seen(outputs, run.after, run.after)
        usual = _seen(outputs, prudent.after, run.after)
        stays = freed > _STAYS[1] and _is_clear(freed - own, run.after, outputs.before)
        if stays and usual < _SHARE * freed:
            found.append((freed - usual, run))
    return found


def _remembering(outputs: Outputs, prudent: Run, runs: Sequence[Run]) -> list[tuple[float, Run]]:
    """Runs that foresee clearly more of the network's answers where these stay, and how much."""
    if _seen(outputs, outputs.before, outputs.before) < _STAYS[0]:
        return []
    usual = _seen(outputs, prudent.after, outputs.before)
    found = [(_seen(outputs, run.after, outputs.before) - usual, run) for run in runs]
    return [(more, run) for more, run in found if _is_clear(more, run.after, prudent.after)]


def _seen(outputs: Outputs, answers: Index, view: Index) -> float:
    return foresight(answers, view, outputs.streams, outputs.probs.shape[1])


def _is_clear(more: float, one: Index, other: Index) -> bool:
    """Whether a difference in foresight is beyond what the samples answered otherwise may give."""
    return bool(more > max(_MORE, _CLEAR * np.sqrt(float(np.mean(one != other)) / len(one))))


def _ordered_by_classes(look: Look) -> bool:
    """Whether Prudent found classes in order, and hardly anything else.

    A network that answers otherwise in each domain stays with an answer, too.
    """
    classes, other, evidence = look.by_classes or 0.0, look.by_other or 0.0, look.evidence or 0.0
    return classes > 2 * other and evidence > _EVIDENCE
