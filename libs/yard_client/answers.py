"""From an HTTP answer to a value or to the error that says what to do."""

import json
from typing import Any, cast

import httpx

from yard_client.errors import ClientError, Refused, ServerFault


def value_of(response: httpx.Response) -> Any:
    """The JSON value of a read answer; None for an empty one. Raises Refused (4xx) or ServerFault."""
    if not response.is_success:
        raise problem_of(response)
    if not response.content:
        return None
    try:
        return json.loads(response.content)
    except ValueError:
        raise ServerFault(response.status_code, f"{_where(response)} did not answer in JSON; {_HINT}") from None


def problem_of(response: httpx.Response) -> ClientError:
    """The error of a read answer that is not a success."""
    status = response.status_code
    body = _problem_body(response)
    if body is None:
        return ServerFault(status, f"{_where(response)} answered {status} {response.reason_phrase}; {_HINT}")
    title = str(body.get("title") or response.reason_phrase)
    detail = str(body.get("detail") or "")
    if 400 <= status < 500:
        return Refused(status, title, detail, body)
    return ServerFault(status, f"{title}: {detail}" if detail else title)


_HINT = "is the URL that of a gpuyard gateway?"


def _problem_body(response: httpx.Response) -> dict[str, Any] | None:
    try:
        body = json.loads(response.content)
    except ValueError:
        return None
    return cast("dict[str, Any]", body) if isinstance(body, dict) else None


def _where(response: httpx.Response) -> str:
    url = response.request.url
    return f"{url.scheme}://{url.netloc.decode()}"
