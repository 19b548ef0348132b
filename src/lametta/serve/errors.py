"""Why a request gets no answer. The message is for the client, the status is HTTP's."""

from typing import ClassVar

from lametta.types import LamettaError


class RefusedError(LamettaError):
    """A request that is not answered."""

    status: ClassVar[int] = 400
    retry_after: ClassVar[int | None] = None  # seconds, where trying again may help


class UnauthorizedError(RefusedError):
    """The token is missing or wrong."""

    status = 401


class NotFoundError(RefusedError):
    """There is no such model."""

    status = 404


class TooSlowError(RefusedError):
    """The client took too long to send its request."""

    status = 408


class TooLargeError(RefusedError):
    """The body is larger than the server takes."""

    status = 413


class UnsupportedError(RefusedError):
    """The body is encoded in a way that the server does not read."""

    status = 415


class BusyError(RefusedError):
    """The server takes no more requests for now."""

    status = 429
    retry_after = 1


class TooManyStreamsError(BusyError):
    """The server keeps as many streams as it may."""

    retry_after = 60


class BrokenAnswerError(RefusedError):
    """The corrector gave no probabilities; the stream was not changed."""

    status = 500


class StoreError(RefusedError):
    """The store of the streams' states cannot be reached."""

    status = 503
    retry_after = 1


class DeadlineError(RefusedError):
    """The answer would come too late; the stream was not changed."""

    status = 504
