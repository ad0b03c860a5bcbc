"""What a call to gpuyard can end in besides an answer. Each class says what the caller can do next."""

from collections.abc import Mapping, Sequence
from typing import Any

from yard_domain.errors import YardError


class ClientError(YardError):
    """Root of every error that the client raises on purpose."""


class NotConfigured(ClientError):
    """No URL or token is known. The message says where to put them."""


class Unreachable(ClientError):
    """No answer within the retry budget: nothing listens there, or the connection broke every time."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(
            f"cannot reach gpuyard at {url}: {cause}. Is it running there? `make up` starts one on this machine; "
            "YARD_URL and the config file say where another one is."
        )
        self.url = url
        self.cause = cause


class ServerFault(ClientError):
    """The server answered, but could not serve the request (5xx), or answered something that is not gpuyard's API."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Refused(ClientError):
    """The server refused the request (4xx). `body` is the whole RFC 9457 problem; `errors` names the fields."""

    def __init__(self, status: int, title: str, detail: str, body: Mapping[str, Any]) -> None:
        super().__init__(f"{title}: {detail}" if detail and detail != title else title)
        self.status = status
        self.title = title
        self.detail = detail
        self.body = dict(body)

    @property
    def errors(self) -> Sequence[Mapping[str, str]]:
        return self.body.get("errors") or []


class NoSuchJob(ClientError):
    """A name or id prefix that no visible job has."""


class AmbiguousJob(ClientError):
    """A name or id prefix that several jobs have. `candidates` are their ids, newest first."""

    def __init__(self, message: str, candidates: Sequence[str]) -> None:
        super().__init__(message)
        self.candidates = list(candidates)
