"""A memory that asks not what makes the order of a stream: what `Prudent` was before it did."""

from dataclasses import dataclass

import numpy as np

from lametta.correctors.base import StatefulCorrector, filled


@dataclass
class Trusting(StatefulCorrector):
    """That `Prudent`'s part 2, with the expert on the fourth root of q, which did most of the harm.

    On the streams of domains in the tests it gives the labels of that `Prudent` to 90 to 99 % of
    the samples.
    """

    def init_state(self, d, k):
        numbers = {"weight": np.array(0.1), "length": np.zeros(()), "count": np.array(3.0)}
        return {**numbers, "past": filled(k), "sums": filled(k, 3 / k)}

    def update(self, state, features, probs):
        return super().update(state, features, probs)[0], {"trust": float(state["weight"])}

    def update_one(self, state, x, q):
        flat = q.astype(float) ** 0.25
        flat /= flat.sum()
        state["sums"] += flat
        state["count"] += 1
        mean = state["sums"] / state["count"]
        posterior = (state["past"] + mean) / (state["length"] + 1) * flat / mean
        weight = state["weight"]
        odds = weight / (1 - weight) * posterior.sum() * np.exp(-0.05)
        posterior /= posterior.sum()
        weight[()] = odds / (1 + odds)
        weight += 3e-4 * (0.1 - weight)
        state["past"], state["length"] = (
            (state[name] + new) * np.exp(-1 / 8)
            for name, new in (("past", posterior), ("length", 1))
        )
        return q + weight * (posterior - q)
