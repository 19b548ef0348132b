"""Prudent and Memory: priors from the past, weighed by their predictive likelihood."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lametta._arrays import Floats, row_sums
from lametta._checks import check_choice
from lametta._lame import lame
from lametta._locks import check_interrupt
from lametta.correctors.base import Invariant, State, StatefulCorrector
from lametta.correctors.prudent import domains, experts, label_prior, order, scenes, window
from lametta.correctors.prudent.constants import CONSTANTS, TINY, Constants
from lametta.correctors.prudent.invariants import INVARIANTS


@dataclass
class Prudent(StatefulCorrector):
    """The corrector to switch on where nobody knows what a stream is like; nothing to tune.

    It works one by one or in batches. The first of five parts is always at work, the others have
    weight only as far as the stream itself speaks for them:

    1. *Scenes*: near-copies of the sample before, as frames of a video are, are averaged and count
       once; a scene is no surer than the share of its frames that voted for its answer.
    2. *Memory*: the classes of the last samples are a prior for the next, weighed by its predictive
       likelihood so far, with the source among the candidates (`Memory`); heard while classes make
       the order of the stream and come again, and neither domains nor a video do.
    3. *Label prior*: a constant prior over the classes, of which some may be absent, from groups of
       near-copies; believed as far as labels agree with their neighbors', and do better with it.
    4. *Domains*: where something else than classes makes the order, the mean of the last log q is
       taken off (NEO's recentering), if neighbors' labels agree about as well afterwards.
    5. *Neighbors*: in a batch, LAME on top of parts 2 and 3, as far as these trust the source less
       and the batch shows few classes. So inside a batch answers depend on later samples, too.

    What is guaranteed: while it is heard, part 2 is a mixture in the sense of prediction with
    expert advice. Let E be its log evidence over the source's, in nats, over n new samples of any
    stream (near-copies count by their novelty), and E_m that of either memory, without the penalty
    of 0.05 a sample:

        E >= -0.106 - 0.0003 n,        E >= E_m - log 20 - 0.0503 n.

    The constants are the weights at the start, and the rate at which weights return to them. This
    bounds how well the *network's* rows are predicted, not accuracy, nor the tests that let parts 2
    to 5 speak: docs/safe.md has what they gain and lose.

    Bounded memory: 238 kB a stream at 1000 classes and 256 features or more.

    ``info`` has means over the batch: ``novelty`` (near 0 for frames of a video), ``trust`` (the
    weight of all that is not the source's own answer), ``absent`` (that of part 3), ``evidence``
    (nats over the source, a sample), ``order`` (classes 1, others -1, none 0).

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
    (0.775, 0.85)
    """

    causal: ClassVar[bool] = False
    constants: ClassVar[Constants] = CONSTANTS

    def init_state(self, d: int, k: int) -> State:
        c = self.constants
        state = scenes.init_state(c, d, k) | window.init_state(c, d, k) | order.init_state(c)
        state |= label_prior.init_state(c, k) | domains.init_state(k)
        return state | experts.init_state(c, k)

    def invariants(self) -> Mapping[str, Invariant]:
        arrays = self.init_state(1, 1)
        return {name: one for name, one in INVARIANTS.items() if name in arrays}

    def update(
        self, state: State, features: Floats, probs: Floats
    ) -> tuple[Floats, dict[str, float]]:
        c = self.constants
        novelty, rows, sketches = scenes.observe(c, state, features, probs)
        nearest = _nearest(state["window"], sketches)
        fitted = self._watch(state, novelty, sketches, rows)
        believed = bool(state["belief"] > 0)
        read = label_prior.reweight(state, rows, fitted) if believed else rows
        heard = _is_heard(state)
        out, source, evidence = experts.mix(
            c, state, novelty, read, kind=int(believed), heard=heard
        )
        trust = 1 - source
        if believed:  # a near-copy of what is known is no evidence of a class
            new = 1 - nearest > c.copy * float(state["median_distance"][0])
            trust = np.array(novelty, np.float32) * new * np.float32(state["belief"])
            out = rows + trust[:, None] * (out - rows)
        elif domains.is_heard(c, state):
            out, trust = domains.recenter(state, rows), np.ones_like(trust)
        trusted = float(trust.mean())
        # A memory may keep the weight of long ago. How well it predicts now says how few classes
        # there are, and so whether a batch has enough of each for neighbors: in full from a nat a
        # sample.
        gate = 1.0 if believed else min(evidence, 1.0)
        if len(probs) > 1 and gate * trusted > c.min_gate:
            out += (c.neighbor_weight * gate) * trust[:, None] * (lame(features, out).probs - out)
        out /= row_sums(np, out)[:, None]
        info = {"trust": trusted, "absent": trusted * believed, "evidence": evidence}
        return out, {**info, "novelty": sum(novelty) / len(probs), "order": order.found(c, state)}

    def _watch(self, state: State, novelty: list[float], sketches: Floats, rows: Floats) -> bool:
        """Take samples into the window, and look at it where it is time; whether that was done.

        Half a window at a time: classes that change where a large batch begins are not to be gone
        from the window when it is looked at.
        """
        c, fitted = self.constants, False
        for i in range(0, len(rows), c.window // 2):
            check_interrupt()
            part = slice(i, i + c.window // 2)
            window.add(state, novelty[part], sketches[part], rows[part])
            if window.should_look(c, state):
                self._look(state)
                fitted = True
        return fitted

    def _look(self, state: State) -> None:
        """Look at the window: what makes its order, and whether classes are absent."""
        c, k = self.constants, len(state["label_prior"])
        sketches, classes, probs = window.in_order(state)
        cosines, rows = sketches @ sketches.T, window.dense(classes, probs, k)
        order.look(c, state, cosines, rows, window.share_of_new(state))
        if order.against_classes(c, state):
            domains.look(c, state, cosines, rows)
        if label_prior.fit(c, state, cosines, classes, probs):
            experts.set_marginal(state, label_prior.reweight(state, rows, fitted=False))
        state["since_look"][()] = 0


def _is_heard(state: State) -> bool:
    """Whether the memory is heard: classes make the order, and samples are no frames of a video.

    Frames that follow each other say the same, right or wrong: that is part 1's business.
    """
    return order.by_classes(state) and not scenes.is_video(state)


def _nearest(kept: Floats, sketches: Floats) -> Floats:
    """Each sketch's highest cosine to a kept one, or to an earlier one of the batch."""
    nearest: Floats = (sketches @ kept.T).max(axis=1)
    if len(sketches) > 1:
        np.maximum(nearest, np.tril(sketches @ sketches.T, -1).max(axis=1), out=nearest)
    return nearest


@dataclass
class Memory(StatefulCorrector):
    """Take the classes of the samples before as a prior, as far as that predicted well so far.

    Near-duplicates of the sample before, as frames of a video are, are one scene, whose
    probabilities are averaged and which counts once. What a *camera*
    shows is mixed: memories of the classes before are priors for the next, and each is weighed by
    its prequential evidence, how well it predicted the samples so far, with the source among them.
    On streams without order, or whose order is not that of classes, the source prevails. A *track*
    shows one object: the scenes' probabilities are multiplied, and a small chance to be another
    object keeps the product from being sure of what a few samples said.

    No data can tell the two apart, so the user has to: a camera that stays with one class
    learns nothing from its order.

    Bounded memory: 230 kB a stream at 1000 classes and 1280 features for a camera, 58 kB for a
    track. Answers are final and depend on the past alone.

    ``info`` has the mean ``novelty`` (near 0 for frames of a video), and of a camera also ``trust``
    (the weight of all that is not the source's own answer), ``evidence`` (nats over the source, a
    sample) and ``order`` (as `Prudent` has it).

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
    constants: ClassVar[Constants] = CONSTANTS

    def __post_init__(self) -> None:
        check_choice("scope", self.scope, ("camera", "track"))

    def init_state(self, d: int, k: int) -> State:
        c = self.constants
        state = scenes.init_state(c, d, k)
        if self.scope == "camera":
            return (
                state | window.init_state(c, d, k) | order.init_state(c) | experts.init_state(c, k)
            )
        # The prior of the scene, and its posterior.
        return state | {"prior": np.full(k, 1 / k), "posterior": np.full(k, 1 / k)}

    def invariants(self) -> Mapping[str, Invariant]:
        arrays = self.init_state(1, 1)
        return {name: one for name, one in INVARIANTS.items() if name in arrays}

    def update(
        self, state: State, features: Floats, probs: Floats
    ) -> tuple[Floats, dict[str, float]]:
        if self.scope == "track":
            return self._track(state, features, probs)
        # One by one: neither a look nor the odds of a video may know what comes after.
        found = [
            self._camera(state, x[None], q[None]) for x, q in zip(features, probs, strict=True)
        ]
        rows, infos = zip(*found, strict=True)
        last = {"order": infos[-1]["order"]}
        means = {name: sum(one[name] for one in infos) / len(infos) for name in infos[0]}
        return np.concatenate(rows), means | last

    def _camera(self, state: State, x: Floats, q: Floats) -> tuple[Floats, dict[str, float]]:
        """Answer one sample by the classes of those before."""
        check_interrupt()
        c = self.constants
        novelty, rows, sketches = scenes.observe(c, state, x, q)
        window.add(state, novelty, sketches, rows)
        if window.should_look(c, state):
            order.look_at_window(c, state)
        heard = _is_heard(state)
        out, source, evidence = experts.mix(c, state, novelty, rows, kind=0, heard=heard)
        spoke = {"trust": 1 - float(source[0]), "evidence": evidence, "novelty": novelty[0]}
        return out, spoke | {"order": order.found(c, state)}

    def _track(self, state: State, x: Floats, q: Floats) -> tuple[Floats, dict[str, float]]:
        """Answer samples of one object by the product of its scenes."""
        c = self.constants
        novelty, rows, _ = scenes.observe(c, state, x, q)
        prior, posterior, out = state["prior"], state["posterior"], np.empty_like(q)
        for i, new in enumerate(novelty):
            stay = (1 - c.track_switch_rate) * posterior + c.track_switch_rate / len(prior)
            prior += new * (stay - prior)
            posterior[:] = prior * np.maximum(rows[i], TINY)
            posterior /= posterior.sum()
            out[i] = posterior
        return out, {"novelty": sum(novelty) / len(novelty)}
