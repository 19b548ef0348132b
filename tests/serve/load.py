"""Clients that go on whatever is killed, and what they should have been answered."""

import http.client
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import numpy as np

from lametta import Prudent
from lametta.correctors import Average
from tests.conftest import make_batch
from tests.serve.client import Client, Reply

# The state of one is larger than many requests, that of the other smaller than one: commits to
# their logs and snapshots both happen all the time.
MODELS = {"prudent": Prudent, "average": Average}
_FEATURES, _PROBS = (array.astype("float32") for array in make_batch(500, 5, 24))
_PAUSE = 0.01  # seconds before a request is sent again


class Load:
    """Streams whose requests are sent one after the other, each until it is answered.

    Parameters
    ----------
    port : int
        The server's.
    threads, streams : int
        How many clients, and how many streams each of them has.
    ids : bool
        Whether requests have ids, so that they can be sent again if it is not known whether they
        were counted. Without, a request that is not answered must not have been counted.
    broken : collection of int
        Statuses by which what stands before the server says that it got no answer.
    name : str
        Of all streams, before their numbers.
    """

    def __init__(
        self,
        port: int,
        threads: int = 4,
        streams: int = 4,
        ids: bool = True,
        broken: Collection[int] = (),
        name: str = "stream",
    ) -> None:
        self.port, self.ids, self.broken, self.name = port, ids, broken, name
        self.answers: list[list[Any]] = [[] for _ in range(threads * streams)]
        self.refusals: list[tuple[Reply, float]] = []  # and how many seconds they took
        self.n_broken = 0  # requests that came to nothing
        self.pause = 0.0  # seconds of a client after each answer
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(threads)
        self._clients = [
            self._pool.submit(self._drive, range(me, threads * streams, threads))
            for me in range(threads)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._pool.shutdown()

    def go_on(self, rounds: int = 6) -> None:
        """Wait until every stream got so many answers more."""
        before = [len(answers) for answers in self.answers]
        self._wait(lambda: min(map(int.__sub__, self.counts(), before)) >= rounds)

    def counts(self) -> list[int]:
        return [len(answers) for answers in self.answers]

    def be_refused(self, times: int = 20) -> None:
        """Wait until so many requests more were refused."""
        before = len(self.refusals)
        self._wait(lambda: len(self.refusals) >= before + times)

    def check(self) -> None:
        """End, and hold all answers against those of each stream alone."""
        self._stop.set()
        for client in self._clients:
            client.result(60)
        for stream, answers in enumerate(self.answers):
            own = list(MODELS.values())[stream % 2]()
            for turn, answer in enumerate(answers):
                expected = own.correct(*_samples(stream, turn)).probs
                where = f"request {turn} of stream {stream}"
                np.testing.assert_array_equal(answer, expected, strict=True, err_msg=where)

    def _wait(self, done: Any) -> None:
        end = time.monotonic() + 120
        while not done():
            for client in self._clients:
                if client.done():
                    client.result()  # it stopped, and says why
            assert time.monotonic() < end, "the clients get no answers"
            time.sleep(0.01)

    def _drive(self, streams: range) -> None:
        client = Client(self.port, timeout=30)
        while not self._stop.is_set():
            for stream in streams:
                answer = self._answer(client, stream, len(self.answers[stream]))
                if answer is not None:
                    self.answers[stream].append(answer)
                    time.sleep(self.pause)
        client.close()

    def _answer(self, client: Client, stream: int, turn: int) -> Any:
        name = f"request {turn}" if self.ids else ""
        model = list(MODELS)[stream % 2]
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                reply = client.infer(*_samples(stream, turn), f"{self.name} {stream}", name, model)
            except TimeoutError:
                raise
            except (OSError, http.client.HTTPException):  # the server has gone
                self.n_broken += 1
            else:
                if reply.status == 200:
                    return reply.probs
                if reply.status in self.broken:
                    self.n_broken += 1
                else:
                    self.refusals.append((reply, time.monotonic() - begun))
                    if reply.status != 503:
                        raise AssertionError(f"expected an answer or 503, got {reply}")
            time.sleep(_PAUSE)
        return None


def _samples(stream: int, turn: int) -> tuple[Any, Any]:
    one = slice((7 * turn + 31 * stream) % 499, (7 * turn + 31 * stream) % 499 + 1)
    return _FEATURES[one], _PROBS[one]
