"""Redis store, shared by replicas (compare-and-set in Lua)."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lametta.serve.protocol import StoreError, TooManyStreamsError
from lametta.serve.stores import IDLE, MOST, StoredState
from lametta.types import LamettaError

logger = logging.getLogger("lametta.serve")

_TIMEOUT = 2.0  # seconds for an answer
_PAUSE = 1.0  # seconds until it is asked again, where no answer came
_PREFIX = "{lametta}:"  # the braces keep all keys in one slot of a cluster
_INDEX = _PREFIX + "streams"  # when each stream came last

# All or nothing, and nothing in between: Redis runs a script alone. A stream's first version is a
# time in microseconds, so that a stream which was forgotten and began anew never comes to a version
# that a replica still holds of its former life.
_COMMIT = """
local state, index = KEYS[1], KEYS[2]
local stream, version, entry, begins, snapshot, most, idle = unpack(ARGV)
local known = redis.call('HGET', state, 'version') or '0'
if known ~= version then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local next = version + 1
if known == '0' then
  redis.call('ZREMRANGEBYSCORE', index, '-inf', now - 1000 * idle)
  if redis.call('ZCARD', index) >= tonumber(most) then return -1 end
  next = now
end
redis.call('ZADD', index, now, stream) -- first, since it is refused where there is no memory left
if begins == '1' then
  redis.call('DEL', state)
  redis.call('HSET', state, 'snapshot', snapshot)
end
redis.call('HSET', state, 'version', next, next, entry)
redis.call('PEXPIRE', state, idle)
return next
"""


class RedisStore:
    """A store in Redis; see `open_store`.

    Kills of Redis lose nothing that was answered if it runs with ``appendonly yes`` and
    ``appendfsync always``; with less it may lose what it has not written yet, and a warning says
    so.
    """

    blocking = True

    def __init__(self, url: str, *, most: int = MOST, idle: float = IDLE) -> None:
        self._most, self._idle = most, max(1, round(1000 * min(idle, 1e9)))
        try:
            # No retries: a commit that may have been made must not be made again.
            self._redis = redis.Redis.from_url(
                url,
                socket_timeout=_TIMEOUT,
                socket_connect_timeout=_TIMEOUT,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
        except ValueError as error:
            raise LamettaError(
                f"store must be redis://HOST:PORT/DB, got {url!r}: {error}"
            ) from error
        self._commit = self._redis.register_script(_COMMIT)
        self._silent_until = -math.inf
        self._warn_of_loss()

    def load(self, stream: str) -> StoredState:
        with self._asking():
            fields: dict[Any, Any] = self._redis.hgetall(_key(stream))
        version, snapshot = fields.pop(b"version", b"0"), fields.pop(b"snapshot", b"")
        return StoredState(
            int(version), snapshot, [fields[made] for made in sorted(fields, key=int)]
        )

    def commit(
        self, stream: str, version: int, entry: bytes, snapshot: bytes | None = None
    ) -> int | None:
        begins = int(snapshot is not None)
        rest = (version, entry, begins, snapshot or b"", self._most, self._idle)
        with self._asking():
            made: int = self._commit(keys=[_key(stream), _INDEX], args=[stream, *rest])
        if made == -1:
            raise TooManyStreamsError(f"there are {self._most} streams, as many as are kept")
        return made or None

    def check(self) -> None:
        with self._asking():
            self._redis.ping()

    def close(self) -> None:
        self._redis.close()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Log what goes wrong; while Redis is silent, fail at once rather than wait in turn."""
        try:
            if time.monotonic() < self._silent_until:
                raise redis.TimeoutError("it was silent a moment ago")
            yield
        except redis.RedisError as error:
            if isinstance(error, redis.TimeoutError) and time.monotonic() >= self._silent_until:
                self._silent_until = time.monotonic() + _PAUSE
            logger.error("Redis: %s", error)
            raise StoreError("the store of the streams' states cannot be reached") from error

    def _warn_of_loss(self) -> None:
        try:
            safe = self._redis.info("persistence").get("aof_enabled")
        except redis.RedisError:
            return  # not there yet, as requests will say
        if not safe:
            logger.warning(
                "Redis keeps no log (appendonly yes, appendfsync always): streams may be lost "
                "when it is killed"
            )


def _key(stream: str) -> str:
    """All of a stream in one place: it expires, or is evicted, as a whole."""
    return f"{_PREFIX}stream:{stream}"
