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
from lametta.correctors.prudent.constants import (
    MAX_LOG_ODDS,
    MIN_GATE,
    NEIGHBOR_WEIGHT,
    PENALTY,
    POWERS,
    TINY,
    TRACK_SWITCH_RATE,
)


@dataclass
class Prudent(StatefulCorrector):
    """The corrector to switch on where nobody knows what a stream is like; nothing to tune.

    It works one sample at a time or in batches, and combines four parts. The first is always at
    work, the others have weight only as far as evidence speaks for them:

    1. *Scenes*: near-duplicates of the sample before, as frames of a video are, are averaged and
       count once. Photographs have few.
    2. *Memory*: the classes of the last samples are a prior for the next, weighed by its predictive
       likelihood on the samples so far, with the source among the candidates (`Memory`).
    3. *Label prior*: a constant prior over the classes, of which some may be absent; accepted only
       where neighbors' labels agree better with it than without, and weighed by the same evidence.
    4. *Neighbors*: in a batch, LAME on top of the rest. It weighs more where parts 2 and 3 trust
       the source less, and where the batch shows few classes: by the weight of part 3, or by the
       evidence of part 2 on this batch, in full from a nat a sample. So inside a batch answers also
       depend on later samples; one by one they do not.

    What is guaranteed: part 2 is a mixture in the sense of prediction with expert advice. Let E be
    its log evidence over the source's, in nats, after n new samples of any stream (near-duplicates
    count by their novelty), and E_m that of either memory, without the penalty of 0.05 a sample:

        E >= -0.106 - 0.0003 n,        E >= E_m - log 20 - 0.0503 n.

    The constants are the weights at the start, and 0.0003 the rate at which weights return to them.
    Where part 3 is accepted, it and part 2 together are at most log 2 + 0.127 n below the better of
    them; the neighbors' test itself is not bounded, nor is part 4. All this bounds how well rows of
    the *network* are predicted, not accuracy: where errors persist as truths do, as in a video that
    is wrong from end to end, averaging makes them firm.

    Bounded memory: 259 kB a stream at 1000 classes and 256 features or more.

    ``info`` has means over the batch: ``novelty`` (near 0 for frames of a video), ``trust`` (the
    weight of all that is not the source's own answer), ``absent`` (that of part 3), ``evidence``
    (nats over the source, a sample).

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
        own = {"log_odds": np.zeros(2)}  # of the label prior: before the last sample, and by it
        parts = scenes.init_state(d, k), experts.init_state(k, 2), label_prior.init_state(d, k)
        return parts[0] | parts[1] | parts[2] | own

    def check_state(self, state: State) -> None:
        super().check_state(state)
        label_prior.check_state(state)

    def update(
        self, state: State, features: Floats, probs: Floats
    ) -> tuple[Floats, dict[str, float]]:
        novelty, rows, sketches = scenes.observe(state, features, probs)
        label_prior.add_to_buffer(state, novelty, sketches, rows)
        if label_prior.should_fit(state):
            self._fit(state)
        out, trust, info = self._combine(state, novelty, rows)
        trusted = float(trust.sum()) / len(probs)
        # A memory may keep the weight of long ago. How well it predicts now says how few classes
        # there are, and so whether a batch has enough of each for neighbors: in full from a nat a
        # sample.
        gate = max(info["absent"], min(info["evidence"], 1.0))
        if len(probs) > 1 and gate * trusted > MIN_GATE:
            out += (NEIGHBOR_WEIGHT * gate) * trust[:, None] * (lame(features, out).probs - out)
        out /= out.sum(axis=1, keepdims=True)
        return out, {**info, "trust": trusted, "novelty": sum(novelty) / len(probs)}

    def _fit(self, state: State) -> None:
        """Fit the label prior; the experts of part 3 read other rows from here on."""
        was = bool(state["accepted"])
        if label_prior.fit(state):
            if not was:
                experts.reset_group(state, 1)
                state["log_odds"][:] = 0
            experts.set_marginal(state, 1, *label_prior.corrected(state, POWERS))

    def _combine(
        self, state: State, novelty: list[float], rows: Floats
    ) -> tuple[Floats, Floats, dict[str, float]]:
        """Parts 2 and 3: answers [N, K], the weight of all but the source, ``info``."""
        n, k = rows.shape
        if not state["accepted"]:
            answers, source, evidence = experts.mix(state, novelty, experts.temper(rows))
            info = {"absent": 0.0, "evidence": float(evidence.sum()) / n}
            return answers[:, 0], (1 - source[:, 0]).astype(np.float32), info
        weighed, found = label_prior.reweight(state, rows)
        tempered = experts.temper(rows, weighed)
        answers, source, evidence = experts.mix(state, novelty, tempered)
        ratios = np.log(found * k) + evidence[:, 1] - PENALTY - evidence[:, 0]
        absent = self._label_prior_weight(state["log_odds"], novelty, ratios)
        out = answers[:, 0] + absent[:, None] * (answers[:, 1] - answers[:, 0])
        trust = 1 - (1 - absent) * source[:, 0].astype(np.float32)
        info = {"absent": float(absent.sum()) / n, "evidence": float(evidence[:, 0].sum()) / n}
        return out, trust, info

    @staticmethod
    def _label_prior_weight(log_odds: Floats, novelty: list[float], ratios: Floats) -> Floats:
        """The weight of part 3 for each sample, from its log odds against part 2."""
        weight = np.empty(len(ratios), np.float32)
        for i, new in enumerate(novelty):
            log_odds[0] = max(min(log_odds[0] + new * log_odds[1], MAX_LOG_ODDS), -MAX_LOG_ODDS)
            log_odds[1] = ratios[i]
            weight[i] = 1 / (1 + math.exp(-max(log_odds[0] + log_odds[1], -500)))
        return weight


@dataclass
class Memory(StatefulCorrector):
    """Take the classes of the samples before as a prior, as far as that predicted well so far.

    Near-duplicates of the sample before, as frames of a video are, are one scene, whose
    probabilities are averaged (the mean of their logarithms) and which counts once. What a *camera*
    shows is mixed: memories of the classes before are priors for the next, and each is weighed by
    its prequential evidence, how well it predicted the samples so far, with the source among them.
    On streams without order the source prevails. A *track* shows one object: the scenes'
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
        state = scenes.init_state(d, k)
        if self.scope == "camera":
            return state | experts.init_state(k)
        # The prior of the scene, and its posterior.
        return state | {"prior": np.full(k, 1 / k), "posterior": np.full(k, 1 / k)}

    def update(
        self, state: State, features: Floats, probs: Floats
    ) -> tuple[Floats, dict[str, float]]:
        novelty, rows, _ = scenes.observe(state, features, probs)
        info = {"novelty": sum(novelty) / len(novelty)}
        if self.scope == "camera":
            answers, source, evidence = experts.mix(state, novelty, experts.temper(rows))
            return answers[:, 0], {"trust": 1 - source.mean(), "evidence": evidence.mean(), **info}
        prior, posterior = state["prior"], state["posterior"]
        out = np.empty_like(probs)
        for i, new in enumerate(novelty):
            stay = (1 - TRACK_SWITCH_RATE) * posterior + TRACK_SWITCH_RATE / len(prior)
            prior += new * (stay - prior)
            posterior[:] = prior * np.maximum(rows[i], TINY)
            posterior /= posterior.sum()
            out[i] = posterior
        return out, info
