"""Redis store, shared by replicas (compare-and-set in Lua)."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lametta.serve.protocol import StoreError, TooManyStreamsError
from lametta.serve.stores import ENDED, IDLE, MOST, StoredState, without_password
from lametta.types import LamettaError

logger = logging.getLogger("lametta.serve")

_TIMEOUT = 2.0  # seconds for an answer
_PAUSE = 1.0  # seconds until it is asked again, where no answer came
_PREFIX = "{lametta}:"  # the braces keep all keys in one slot of a cluster
_INDEX = _PREFIX + "streams"  # when each stream came last
_ENDED = _PREFIX + "ended"  # when each of those that have ended did
_FORGETFUL = (
    "Redis keeps no log (appendonly yes, appendfsync always): streams may be lost when it is killed"
)
_LATE = (
    "Redis writes its log late (appendfsync {}, not always): a power cut may lose the last requests"
)
_EVICTS = "Redis may evict streams when its memory is full (maxmemory-policy {}, not noeviction)"

# All or nothing, and nothing in between: Redis runs a script alone. A stream's first version is a
# time in microseconds, so that a stream which was forgotten and began anew never comes to a version
# that a replica still holds of its former life.
_COMMIT = """
local state, index, ended = KEYS[1], KEYS[2], KEYS[3]
local stream, version, entry, begins, snapshot, most, idle, ends, is_end, prefix = unpack(ARGV)
local known = redis.call('HGET', state, 'version') or '0'
if known ~= version then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local next = version + 1
if known == '0' then
  redis.call('ZREMRANGEBYSCORE', index, '-inf', now - 1000 * idle)
  redis.call('ZREMRANGEBYSCORE', ended, '-inf', now - 1000 * ends)
  if redis.call('ZCARD', index) + redis.call('ZCARD', ended) >= tonumber(most) then
    local oldest = redis.call('ZPOPMIN', ended)
    if not oldest[1] then return -1 end
    redis.call('DEL', prefix .. oldest[1])
  end
  next = now
end
-- First, since it is refused where there is no memory left.
redis.call('ZADD', is_end == '1' and ended or index, now, stream)
redis.call('ZREM', is_end == '1' and index or ended, stream)
if begins == '1' then
  redis.call('DEL', state)
  redis.call('HSET', state, 'snapshot', snapshot)
end
redis.call('HSET', state, 'version', next, next, entry)
redis.call('PEXPIRE', state, is_end == '1' and ends or idle)
return next
"""


class RedisStore:
    """A store in Redis; see `open_store`.

    Kills of Redis lose nothing that was answered if it runs with ``appendonly yes`` and
    ``appendfsync always``; with less it may lose what it has not written yet, and where it may
    evict keys also what it has: `warnings` says so.
    """

    blocking = True

    def __init__(
        self, url: str, *, most: int = MOST, idle: float = IDLE, password: str | None = None
    ) -> None:
        self.damaged = 0
        self._most, self._idle = most, max(1, round(1000 * min(idle, 1e9)))
        given = {} if password is None else {"password": password}
        try:
            # No retries: a commit that may have been made must not be made again.
            self._redis = redis.Redis.from_url(
                url,
                socket_timeout=_TIMEOUT,
                socket_connect_timeout=_TIMEOUT,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
                **given,
            )
        except ValueError:
            raise LamettaError(
                f"store must be redis://HOST:PORT/DB, got {without_password(url)!r}"
            ) from None  # which may quote the password
        self._commit = self._redis.register_script(_COMMIT)
        self._silent_until = -math.inf
        with suppress(redis.RedisError):  # not there yet, as requests will say
            for warning in self._risks():
                logger.warning("%s", warning)

    def load(self, stream: str) -> StoredState:
        with self._asking():
            fields: dict[Any, Any] = self._redis.hgetall(_key(stream))
        version, snapshot = fields.pop(b"version", b"0"), fields.pop(b"snapshot", b"")
        try:
            log = dict(sorted((int(made), entry) for made, entry in fields.items()))
            state = StoredState(int(version), snapshot, list(log.values()))
            if list(log) != list(range(state.version - len(log) + 1, state.version + 1)):
                raise ValueError("requests are missing")
        except ValueError as error:  # what is there is not what was put there
            self.damaged += 1
            logger.error("Redis: the state of %r is damaged: %s", stream, error)
            raise StoreError("the state of a stream cannot be read or written") from error
        return state

    def commit(
        self,
        stream: str,
        version: int,
        entry: bytes,
        snapshot: bytes | None = None,
        *,
        end: bool = False,
    ) -> int | None:
        begins, kept = int(snapshot is not None), min(self._idle, round(1000 * ENDED))
        rest = (version, entry, begins, snapshot or b"", self._most, self._idle)
        with self._asking():
            made: int = self._commit(
                keys=[_key(stream), _INDEX, _ENDED],
                args=[stream, *rest, kept, int(end), _key("")],
            )
        if made == -1:
            raise TooManyStreamsError(f"there are {self._most} streams, as many as are kept")
        return made or None

    def check(self) -> None:
        with self._asking():
            self._redis.ping()

    def close(self) -> None:
        self._redis.close()

    def warnings(self) -> list[str]:
        """Settings of Redis by which it may lose states."""
        with self._asking():
            return self._risks()

    def _risks(self) -> list[str]:
        persistence, memory = self._redis.info("persistence"), self._redis.info("memory")
        try:
            fsync = self._redis.config_get("appendfsync").get("appendfsync", "always")
        except redis.ResponseError:  # managed ones do not tell
            fsync = "always"
        found = []
        if not persistence.get("aof_enabled"):
            found.append(_FORGETFUL)
        elif fsync != "always":
            found.append(_LATE.format(fsync))
        if (policy := memory.get("maxmemory_policy", "noeviction")) != "noeviction":
            found.append(_EVICTS.format(policy))
        return found

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


def _key(stream: str) -> str:
    """All of a stream in one place: it expires, or is evicted, as a whole."""
    return f"{_PREFIX}stream:{stream}"
