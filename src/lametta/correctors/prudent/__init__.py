"""Prudent and Memory: priors from the past, weighed by their predictive likelihood."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lametta._arrays import Floats
from lametta._checks import check_choice
from lametta._lame import lame
from lametta.correctors.base import State, StatefulCorrector
from lametta.correctors.prudent import experts, label_prior, scenes

_MOST = 2.0  # nats that absent classes may be ahead or behind, so that the lead can soon change
_LEAST = 0.05  # trust below which a batch's neighbors are not asked
_LEAVE = 1e-4  # the chance, at each sample, that a track becomes another object's


@dataclass
class Prudent(StatefulCorrector):
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

    def init_state(self, d: int, k: int) -> State:
        own = {"lead": np.zeros(2)}  # of absent classes in nats: before the last sample, and by it
        return scenes.begin(d, k) | experts.begin(k, 2) | label_prior.begin(d, k) | own

    def check_state(self, state: State) -> None:
        super().check_state(state)
        label_prior.check(state)

    def update(
        self, state: State, features: Floats, probs: Floats
    ) -> tuple[Floats, dict[str, float]]:
        novelty, rows, sketches = scenes.arrive(state, features, probs)
        label_prior.keep(state, novelty, sketches, rows)
        if label_prior.is_due(state):
            self._fit(state)
        out, trust, said = self._join(state, novelty, rows)
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
        if label_prior.fit(state):
            if not was:
                experts.restart(state, 1)
                state["lead"][:] = 0
            experts.rebase(state, 1, *label_prior.corrected(state, experts.POWERS))

    def _join(
        self, state: State, novelty: list[float], rows: Floats
    ) -> tuple[Floats, Floats, dict[str, float]]:
        """Parts 2 and 3: answers [N, K], the weight of all but the source, who spoke."""
        n, k = rows.shape
        if not state["believed"]:
            answers, source, evidence = experts.judge(state, novelty, experts.read(rows))
            said = {"absent": 0.0, "evidence": float(evidence.sum()) / n}
            return answers[:, 0], (1 - source[:, 0]).astype(np.float32), said
        weighed, found = label_prior.weigh(state, rows)
        read = experts.read(rows, weighed)
        answers, source, evidence = experts.judge(state, novelty, read)
        fits = np.log(found * k) + evidence[:, 1] - experts.PRICE - evidence[:, 0]
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


@dataclass
class Memory(StatefulCorrector):
    """What was around a sample tells what it is, as far as the past has shown that it does.

    Near-copies of the sample before, as frames of a video are, are one scene, whose probabilities
    are averaged (the mean of their logarithms) and which counts once. What a *camera* shows is
    mixed: memories of the classes before are priors for the next, and each is weighed by its
    prequential evidence, how well it foretold the samples so far, with the source among them. On
    streams without order the source prevails. A *track* shows one object: the scenes'
    probabilities are multiplied, and a small chance to be another object keeps the product from
    being sure of what a few samples said.

    No data can tell the two apart, so the user has to: a camera that stays with one class
    learns nothing from its order.

    Bounded memory: 59 kB a stream at 1000 classes and 1280 features for a camera, 43 kB for a
    track. Answers are final and depend on the past alone.

    ``info`` has the mean ``novelty`` (near 0 for frames of a video), and of a camera also ``trust``
    (the weight of all that is not the source's own answer) and ``evidence`` (nats over the source,
    a sample).

    Parameters
    ----------
    scope : {"camera", "track"}
        What one stream is.

    Examples
    --------
    >>> import numpy as np
    >>> features = np.random.default_rng(0).normal(size=(3, 8))
    >>> probs = np.array([[0.7, 0.3], [0.4, 0.6], [0.7, 0.3]])
    >>> Memory("track").correct(features, probs).probs.round(2)
    array([[0.7 , 0.3 ],
           [0.61, 0.39],
           [0.78, 0.22]])
    """

    scope: str = "camera"

    def __post_init__(self) -> None:
        check_choice("scope", self.scope, ("camera", "track"))

    def init_state(self, d: int, k: int) -> State:
        state = scenes.begin(d, k)
        if self.scope == "camera":
            return state | experts.begin(k)
        # The prior of the scene, and its posterior.
        return state | {"prior": np.full(k, 1 / k), "posterior": np.full(k, 1 / k)}

    def update(
        self, state: State, features: Floats, probs: Floats
    ) -> tuple[Floats, dict[str, float]]:
        novelty, rows, _ = scenes.arrive(state, features, probs)
        info = {"novelty": sum(novelty) / len(novelty)}
        if self.scope == "camera":
            answers, source, evidence = experts.judge(state, novelty, experts.read(rows))
            return answers[:, 0], {"trust": 1 - source.mean(), "evidence": evidence.mean(), **info}
        prior, posterior = state["prior"], state["posterior"]
        out = np.empty_like(probs)
        for i, new in enumerate(novelty):
            prior += new * ((1 - _LEAVE) * posterior + _LEAVE / len(prior) - prior)
            posterior[:] = prior * np.maximum(rows[i], scenes.TINY)
            posterior /= posterior.sum()
            out[i] = posterior
        return out, info
