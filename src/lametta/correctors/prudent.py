"""Prudent: corrects where the evidence says that it helps, and nowhere else."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lametta._arrays import Floats
from lametta._lame import lame
from lametta.correctors import _absent, _evidence, _scenes
from lametta.correctors._state import Remembering, State

_MOST = 2.0  # nats that absent classes may be ahead or behind, so that the lead can soon change
_LEAST = 0.05  # trust below which a batch's neighbors are not asked


@dataclass
class Prudent(Remembering):
    """The corrector to switch on where nobody knows what a stream is like; nothing to tune.

    It works one sample at a time or in batches, and joins four parts. The first is always at work,
    the others are heard only as far as evidence speaks for them:

    1. *Scenes*: near-copies of the sample before, as frames of a video are, are averaged and count
       once. Photographs have few.
    2. *Memory*: the classes of the last samples are a prior for the next, weighed by how well that
       foretold the samples so far, with the source among the candidates (`Memory`).
    3. *Absent classes*: a constant prior over the classes that the stream has, believed only where
       neighbors' labels agree better with it than without, and weighed by the same evidence.
    4. *Neighbors*: in a batch, LAME on top of the rest. It weighs more where parts 2 and 3 trust
       the source less, and where the batch shows few classes: by the weight of part 3, or by what
       part 2 foretold of this batch, in full from a nat a sample. So inside a batch answers also
       depend on later samples; one by one they do not.

    What is guaranteed: part 2 is a mixture in the sense of prediction with expert advice. After n
    new samples of any stream (near-copies count by their novelty) its evidence, in nats over the
    source's, is at least -0.106 - 0.0003 n: the weight that the source gives up at the start, and
    what returns to the start with each sample. It is also at least either memory's less
    log 20 + 0.0503 n, where 0.05 is the price that a memory has to be worth. Where part 3 is heard,
    it and part 2 together are at most log 2 + 0.127 n below the better of them; the neighbors' test
    itself is not bounded, nor is part 4. All this bounds how well rows of the *network* are
    foretold, not accuracy: where errors persist as truths do, as in a video that is wrong from end
    to end, averaging makes them firm.

    Bounded memory: 259 kB a stream at 1000 classes and 256 features or more.

    ``info`` says who spoke, each as a mean over the batch: ``novelty`` (near 0 for frames of a
    video), ``trust`` (the weight of all that is not the source's own answer), ``absent`` (that of
    part 3), ``evidence`` (nats over the source, a sample).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat([0, 1, 2, 0], 50)
    >>> features = np.eye(3, 16)[labels] + 0.4 * rng.normal(size=(200, 16))
    >>> scores = np.exp(2 * features[:, :3] + rng.normal(size=(200, 3)))
    >>> probs = scores / scores.sum(axis=1, keepdims=True)
    >>> prudent = Prudent()
    >>> rows = [prudent.correct(x[None], q[None]).probs[0] for x, q in zip(features, probs)]
    >>> float((probs.argmax(1) == labels).mean()), float((np.argmax(rows, 1) == labels).mean())
    (0.775, 0.885)
    """

    causal: ClassVar[bool] = False

    def _begin(self, d: int, k: int) -> State:
        own = {"lead": np.zeros(2)}  # of absent classes in nats: before the last sample, and by it
        return _scenes.begin(d, k) | _evidence.begin(k, 2) | _absent.begin(d, k) | own

    def _check_state(self, state: State) -> None:
        super()._check_state(state)
        _absent.check(state)

    def _advance(
        self, state: State, features: Floats, probs: Floats
    ) -> tuple[Floats, dict[str, float]]:
        novelty, scenes, sketches = _scenes.arrive(state, features, probs)
        _absent.keep(state, novelty, sketches, scenes)
        if _absent.is_due(state):
            self._fit(state)
        out, trust, said = self._join(state, novelty, scenes)
        trusted = float(trust.sum()) / len(probs)
        # A memory may keep the trust of long ago. What it foretells now says how few classes there
        # are, and so whether a batch has enough of each for neighbors: in full from a nat a sample.
        heard = max(said["absent"], min(said["evidence"], 1.0))
        if len(probs) > 1 and heard * trusted > _LEAST:
            # Halfway: neighbors that agree make LAME more sure than they are right.
            out += (0.5 * heard) * trust[:, None] * (lame(features, out).probs - out)
        out /= out.sum(axis=1, keepdims=True)
        return out, {**said, "trust": trusted, "novelty": sum(novelty) / len(probs)}

    def _fit(self, state: State) -> None:
        """Look for absent classes; the experts of part 3 read other rows from here on."""
        was = bool(state["believed"])
        if _absent.fit(state):
            if not was:
                _evidence.restart(state, 1)
                state["lead"][:] = 0
            _evidence.rebase(state, 1, *_absent.corrected(state, _evidence.POWERS))

    def _join(
        self, state: State, novelty: list[float], scenes: Floats
    ) -> tuple[Floats, Floats, dict[str, float]]:
        """Parts 2 and 3: answers [N, K], the weight of all but the source, who spoke."""
        n, k = scenes.shape
        if not state["believed"]:
            answers, source, evidence = _evidence.judge(state, novelty, _evidence.read(scenes))
            said = {"absent": 0.0, "evidence": float(evidence.sum()) / n}
            return answers[:, 0], (1 - source[:, 0]).astype(np.float32), said
        weighed, found = _absent.weigh(state, scenes)
        read = _evidence.read(scenes, weighed)
        answers, source, evidence = _evidence.judge(state, novelty, read)
        fits = np.log(found * k) + evidence[:, 1] - _evidence.PRICE - evidence[:, 0]
        absent = self._lead(state["lead"], novelty, fits)
        out = answers[:, 0] + absent[:, None] * (answers[:, 1] - answers[:, 0])
        trust = 1 - (1 - absent) * source[:, 0].astype(np.float32)
        said = {"absent": float(absent.sum()) / n, "evidence": float(evidence[:, 0].sum()) / n}
        return out, trust, said

    @staticmethod
    def _lead(lead: Floats, novelty: list[float], ahead: Floats) -> Floats:
        """How far part 3 is believed, from its lead over part 2 in nats."""
        believed = np.empty(len(ahead), np.float32)
        for i, new in enumerate(novelty):
            lead[0] = max(min(lead[0] + new * lead[1], _MOST), -_MOST)
            lead[1] = ahead[i]
            believed[i] = 1 / (1 + math.exp(-max(lead[0] + lead[1], -500)))
        return believed
