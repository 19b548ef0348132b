"""Streams in Redis, so that several replicas of a server can share them."""

import logging

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lametta.serve.errors import StoreError, TooManyStreamsError
from lametta.serve.stores import IDLE, MOST, Kept
from lametta.types import LamettaError

_TIMEOUT = 2.0  # seconds for an answer
_PREFIX = "{lametta}:"  # the braces keep all keys in one slot of a cluster
_INDEX = _PREFIX + "streams"  # when each stream came last

# All or nothing, and nothing in between: Redis runs a script alone.
_COMMIT = """
local state, log, index = KEYS[1], KEYS[2], KEYS[3]
local stream, version, entry, snapshot = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local begins, most, idle = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local known = redis.call('HGET', state, 'version') or '0'
if known ~= version then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if known == '0' then
  redis.call('ZREMRANGEBYSCORE', index, '-inf', now - idle)
  if redis.call('ZCARD', index) >= most then return -1 end
end
if begins == '1' then
  redis.call('HSET', state, 'snapshot', snapshot)
  redis.call('DEL', log)
end
redis.call('RPUSH', log, entry)
redis.call('HINCRBY', state, 'version', 1)
redis.call('PEXPIRE', state, idle)
redis.call('PEXPIRE', log, idle)
redis.call('ZADD', index, now, stream)
return 1
"""


class RedisStore:
    """A store in Redis; see `open_store`.

    Kills of Redis lose nothing that was answered if it runs with ``appendonly yes`` and
    ``appendfsync always``; with less it may lose what it has not written yet, and a warning says
    so.
    """

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
        self._warn_of_loss()

    def load(self, stream: str) -> Kept:
        state, log = _keys(stream)
        try:
            with self._redis.pipeline(transaction=True) as both:
                both.hmget(state, ["version", "snapshot"])
                both.lrange(log, 0, -1)
                (version, snapshot), entries = both.execute()
        except redis.RedisError as error:
            raise _unreachable(error) from error
        return Kept(int(version or 0), snapshot or b"", entries)

    def commit(
        self, stream: str, version: int, entry: bytes, snapshot: bytes | None = None
    ) -> bool:
        begins = int(snapshot is not None)
        args: list[bytes | str | int] = [
            stream,
            version,
            entry,
            snapshot or b"",
            begins,
            self._most,
            self._idle,
        ]
        try:
            done = self._commit(keys=[*_keys(stream), _INDEX], args=args)
        except redis.RedisError as error:
            raise _unreachable(error) from error
        if done == -1:
            raise TooManyStreamsError(f"there are {self._most} streams, as many as are kept")
        return bool(done)

    def check(self) -> None:
        try:
            self._redis.ping()
        except redis.RedisError as error:
            raise _unreachable(error) from error

    def close(self) -> None:
        self._redis.close()

    def _warn_of_loss(self) -> None:
        try:
            safe = self._redis.info("persistence").get("aof_enabled")
        except redis.RedisError:
            return  # not there yet; requests will say so
        if not safe:
            logging.getLogger("lametta.serve").warning(
                "Redis keeps no log (appendonly yes, appendfsync always): streams may be lost "
                "when it is killed"
            )


def _keys(stream: str) -> tuple[str, str]:
    return f"{_PREFIX}state:{stream}", f"{_PREFIX}log:{stream}"


def _unreachable(error: redis.RedisError) -> StoreError:
    logging.getLogger("lametta.serve").error("Redis: %s", error)
    return StoreError("the store of the streams' states cannot be reached")
