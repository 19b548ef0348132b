"""The last rows of a stream, in one array of fixed size."""

import numpy as np

from lametta._arrays import Floats
from lametta.correctors._state import State


def ring(size: int, k: int) -> State:
    """The state of an empty ring of rows [K]."""
    return {"rows": np.zeros((size, k), np.float32), "count": np.zeros((), np.int64)}


def push(state: State, row: Floats) -> Floats:
    """Put a row in the place of the oldest; return all rows so far, in no particular order."""
    rows = state["rows"]
    rows[int(state["count"]) % len(rows)] = row
    state["count"] += 1
    return rows[: min(int(state["count"]), len(rows))]
