"""Sessions: per-stream state by optimistic concurrency; idempotent retries."""

import hashlib
import logging
import math
import re
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from lametta._arrays import to_numpy
from lametta._locks import interruptible
from lametta.correctors._lru import LRUCache
from lametta.correctors.base import check_can_correct, clone, host_values, state_nbytes
from lametta.serve.protocol import (
    BrokenAnswerError,
    Deadline,
    DeadlineError,
    TooLargeError,
    TooManyRequestsError,
)
from lametta.serve.stores import Store
from lametta.signals import signals
from lametta.types import Corrector, Prediction, Stateful

_ATTEMPTS = 20  # to advance a stream before other replicas do
_HEAD = struct.Struct("<BBBIIII")  # of an entry: dtypes, flags, N, d, K, length of the id
_DTYPES = dict(enumerate(np.dtype(f"<f{size}") for size in (2, 4, 8)))
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_OVERHEAD = 8192  # bytes of Python's objects for a stream
_PIECE, _ROWS = 2**15, 64  # numbers, and samples, corrected between two looks at the clock


class Samples(NamedTuple):
    """Samples of a request: features and probabilities.

    Attributes
    ----------
    features, probs : array [N, d], [N, K]
        As for `lametta.Corrector.correct`.
    id : str
        The request's. With one, the last request of a stream may come again, if its answer was
        lost: it is answered the same and counts once.
    start, end : bool
        Whether the stream begins anew with these samples, and whether it ends with them.
    """

    features: NDArray[np.floating]
    probs: NDArray[np.floating]
    id: str = ""
    start: bool = False
    end: bool = False

    def contiguous(self) -> "Samples":
        """The same row by row, as they are read back: NumPy may sum other layouts differently."""
        if self.features.flags.c_contiguous and self.probs.flags.c_contiguous:
            return self
        features, probs = map(np.ascontiguousarray, (self.features, self.probs))
        return self._replace(features=features, probs=probs)

    def pack(self) -> bytes:
        """Make an entry of a log of contiguous samples; the same give the same bytes."""
        x, q, name = self.features, self.probs, self.id.encode()
        flags = self.start + 2 * self.end
        head = _HEAD.pack(_CODES[x.dtype], _CODES[q.dtype], flags, *x.shape, q.shape[1], len(name))
        return b"".join((head, name, x.data, q.data))

    @classmethod
    def unpack(cls, entry: bytes) -> "Samples":
        """Read what `pack` made."""
        x_code, q_code, flags, n, d, k, length = _HEAD.unpack_from(entry)
        start = _HEAD.size + length
        name = entry[_HEAD.size : start].decode()
        x = np.frombuffer(entry, _DTYPES[x_code], n * d, start).reshape(n, d)
        q = np.frombuffer(entry, _DTYPES[q_code], n * k, start + x.nbytes).reshape(n, k)
        # Copies, since NumPy may sum unaligned numbers in another order.
        return cls(x.copy(), q.copy(), name, bool(flags & 1), bool(flags & 2))


@dataclass
class Session:
    """A stream's state as this process knows it; the truth is in the store."""

    corrector: Stateful
    version: int = -1  # -1: not known, to be loaded
    ended: bool = False
    logged: int = 0  # bytes of the log since the snapshot
    size: int = 0  # bytes of the state, as far as is known
    last: tuple[bytes, Prediction] | None = None  # the last request's digest and answer

    def measure(self, samples: Samples) -> int:
        """How many bytes the state takes, of which the first samples are these."""
        if not self.size:
            d, k = samples.features.shape[1], samples.probs.shape[1]
            self.size = state_nbytes(self.corrector, d, k)
        if not self.size:  # one that cannot say
            self.size = sum(array.nbytes for array in self.corrector.state_dict().values())
        return self.size

    def record(self, samples: Samples, entry: bytes, prediction: Prediction) -> None:
        """Record what the next requests need to know of this one."""
        self.ended = samples.end
        self.logged += len(entry)
        self.measure(samples)
        answer = Prediction(prediction.probs, None, prediction.info)
        self.last = (_digest(entry), answer) if samples.id else None


class SessionManager:
    """Sessions of one corrector: many streams, whose states are in a store.

    Every request is committed before it is answered, under the version it was computed from. So
    an answered request is never lost, and two replicas never both advance a stream.

    Parameters
    ----------
    corrector : Corrector
        What every stream gets a copy of.
    name : str
        The corrector's name in the store. With its options it keeps apart the streams of different
        correctors.
    store : Store
        Where states survive.
    memory : float
        Bytes of states that are held ready here; others are loaded when they are needed. A stream
        whose own state is larger is refused.

    Attributes
    ----------
    stateful : bool
        Whether the corrector remembers; without memory, no streams are kept.
    """

    def __init__(
        self, corrector: Corrector, name: str, store: Store, *, memory: float = 2**30
    ) -> None:
        self.corrector, self.store = corrector, store
        check_can_correct(corrector)
        self.stateful = isinstance(corrector, Stateful) and getattr(corrector, "stateful", True)
        # An object's address in memory is no option: it differs after a restart.
        options = re.sub(" at 0x[0-9a-f]+", "", repr(corrector))
        options = hashlib.sha256(options.encode()).hexdigest()[:8]
        self._prefix = f"{name}:{options}:"
        self._name, self._memory = name, memory
        self._fits = lru_cache(maxsize=256)(self._check_fits)
        self._cache = LRUCache(
            self._begin, _size, max_entries=2**31, max_bytes=memory, ttl=math.inf
        )

    @property
    def evicted(self) -> int:
        """How many streams made room for others here; the store has them still."""
        return self._cache.evicted

    def __len__(self) -> int:
        return len(self._cache)

    def is_at_hand(self, stream: str | None) -> bool:
        """Whether a stream can go on at once: nobody uses it, and its state is held ready here."""
        if stream is None or not self.stateful:
            return True
        session = self._cache.peek(stream)
        return session is not None and session.version >= 0

    def correct(
        self, samples: Samples, stream: str | None = None, deadline: Deadline | None = None
    ) -> Prediction:
        """Correct the next samples of a stream; without one, a batch that stands alone.

        After the deadline the stream stays as it is, and `DeadlineError` is raised.
        """
        deadline = Deadline() if deadline is None else deadline
        if self.stateful:
            self._fits(samples.features.shape[1], samples.probs.shape[1])
        if stream is None or not self.stateful:
            return _correct(clone(self.corrector), samples, deadline)
        samples = samples.contiguous()
        try:
            with self._cache.lease(stream, min(deadline.left(), 1e6)) as session:
                for _ in range(_ATTEMPTS):
                    answer = self._try_commit(session, self._prefix + stream, samples, deadline)
                    if answer is not None:
                        return answer
        except TimeoutError:
            raise DeadlineError("the stream was busy until the deadline") from None
        raise TooManyRequestsError("the stream is advanced by too many others at once")

    def _check_fits(self, d: int, k: int) -> None:
        """Raise if the state of a stream of d features and K classes is larger than the memory."""
        self._check_size(d, k, state_nbytes(self.corrector, d, k))

    def _check_size(self, d: int, k: int, size: int) -> None:
        if size > self._memory:
            raise TooLargeError(
                f"a stream of {self._name} with {d} features and {k} classes has a state of "
                f"{size / 2**20:.0f} MiB, more than the server has for all of them"
            )

    def _try_commit(
        self, session: Session, stream: str, samples: Samples, deadline: Deadline
    ) -> Prediction | None:
        """The answer, committed; None if another replica was faster, or may have been."""
        is_fresh = session.version < 0
        if is_fresh:
            self._load(session, stream)
        entry = samples.pack()
        if samples.id and session.last is not None and session.last[0] == _digest(entry):
            if is_fresh:
                return session.last[1]
            session.version = -1  # the store knows whether it still is the last
            return None
        deadline.check()
        snapshot = None
        if samples.start or session.ended:
            session.corrector.reset()
            snapshot = b""
        elif session.logged > session.size:  # so that a frame costs its own bytes twice at most
            snapshot = save(session.corrector.state_dict())
            session.size = len(snapshot)
        version, session.version = session.version, -1  # until all went well
        prediction = _correct(session.corrector, samples, deadline)
        if not session.size:  # of one that could not say before
            sizes = samples.features.shape[1], samples.probs.shape[1]
            self._check_size(*sizes, session.measure(samples))
        deadline.commit()
        made = self.store.commit(stream, version, entry, snapshot, end=samples.end)
        if made is None:
            deadline.reopen()
            return None
        session.version = made
        session.logged = session.logged if snapshot is None else 0
        session.record(samples, entry, prediction)
        return prediction

    def _load(self, session: Session, stream: str) -> None:
        """Restore the state from the store's snapshot and the requests since."""
        stored = self.store.load(stream)
        session.corrector.reset()
        session.ended, session.logged, session.last = False, 0, None
        try:
            if stored.snapshot:
                session.corrector.load_state_dict(load(stored.snapshot))
            for entry in stored.log:
                samples = Samples.unpack(entry)
                self._fits(samples.features.shape[1], samples.probs.shape[1])
                prediction = _correct(session.corrector, samples, Deadline())
                session.record(samples, entry, prediction)
        except MemoryError:
            raise
        except Exception:
            # Written by another version of the corrector, say: the stream can only begin anew.
            logging.getLogger("lametta.serve").exception("the state of %r is of no use", stream)
            session.corrector.reset()
            session.ended = True
        session.version = stored.version

    def _begin(self) -> Session:
        assert isinstance(self.corrector, Stateful)  # others hold no streams
        return Session(clone(self.corrector))


def _correct(corrector: Corrector, samples: Samples, deadline: Deadline) -> Prediction:
    """The answer of a corrector, in pieces between which the clock is looked at.

    A corrector that looks ahead sees all samples at once, and looks at the clock itself, if it is
    one of ours; who refuses then has to load its state again.
    """
    x, q = samples.features, samples.probs
    size = min(max(_PIECE // (x.shape[1] + q.shape[1]), 1), _ROWS)
    if len(q) <= size:
        return _checked(corrector.correct(x, q))
    with interruptible(deadline.check):
        return _correct_many(corrector, x, q, size, deadline)


def _correct_many(
    corrector: Corrector,
    x: NDArray[np.floating],
    q: NDArray[np.floating],
    size: int,
    deadline: Deadline,
) -> Prediction:
    if not getattr(corrector, "causal", False):
        return _checked(corrector.correct(x, q))
    host_values(x, q)  # so that the first piece is not counted where the last one is wrong
    parts = []
    for start in range(0, len(q), size):
        deadline.check()
        rows = slice(start, start + size)
        parts.append(_checked(corrector.correct(x[rows], q[rows])))
    probs = np.concatenate([to_numpy(part.probs) for part in parts])
    shared = set.intersection(*(set(part.info) for part in parts))
    weights = [len(part.probs) for part in parts]
    means = {
        name: float(np.average([part.info[name] for part in parts], weights=weights))
        for name in shared
    }
    return Prediction(probs, x, means | signals(probs, q))


def _checked(prediction: Prediction) -> Prediction:
    """What a corrector gave, which may be anybody's and need not check what it is given."""
    if not isinstance(prediction, Prediction):
        raise BrokenAnswerError(f"the corrector gave {type(prediction).__name__}, no Prediction")
    if not np.isfinite(to_numpy(prediction.probs)).all():
        raise BrokenAnswerError("the corrector gave probabilities that are not finite")
    return prediction


def _size(session: Session) -> int:
    last = 0 if session.last is None else int(session.last[1].probs.nbytes)
    return session.size + last + _OVERHEAD


def _digest(entry: bytes) -> bytes:
    return hashlib.sha256(entry).digest()
