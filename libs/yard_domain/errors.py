"""One small tree of errors; whoever catches one knows from its class what to do next."""


class YardError(Exception):
    """Root of every error that gpuyard raises on purpose."""


class Retryable(YardError):
    """The same call may succeed later (database away, lock lost): keep the order, back off, try again."""


class Permanent(YardError):
    """The same call will never succeed: park the event's key and tell people."""


class Conflict(YardError):
    """State moved between read and write: read again and decide again."""


class Fenced(YardError):
    """Another instance owns this scope or partition now: stop, change nothing."""


class InvalidField(YardError, ValueError):
    """An input value that cannot be accepted. `field` is its dotted path; the message says what would be valid."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message
