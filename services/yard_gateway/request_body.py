"""Reading a request's body within its limits, whatever its headers claim."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from yard_gateway.document_reading import malformed, read_json, read_yaml
from yard_runtime.http import Problem, field_errors

_READERS: dict[str, Callable[[bytes], Any]] = {
    "application/json": read_json,
    "application/yaml": read_yaml,
    "application/x-yaml": read_yaml,
    "text/yaml": read_yaml,
}
_SLOW_BYTES = 8 * 1024
"""A YAML text above this is parsed outside of the event loop: it takes milliseconds."""

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, *, limit: int, timeout_seconds: float) -> bytes:
    """The whole body. Raises Problem 400, 408 or 413; it never holds more than the limit and one chunk."""
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise Problem(415, "Unsupported media type", "A compressed body is not accepted.")
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit)
                chunks.append(chunk)
    except TimeoutError:
        raise Problem(408, "Request timeout", f"The body did not arrive within {timeout_seconds:g} s.") from None
    return b"".join(chunks)


def _too_large(limit: int) -> Problem:
    return Problem(
        413, "Content too large", f"The body may have at most {limit} bytes.", headers={"Connection": "close"}
    )


def reader_for(request: Request, *, yaml: bool) -> Callable[[bytes], Any]:
    """What reads a body of this request's content type. Raises Problem 415 naming what is accepted."""
    given = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    reader = _READERS.get(given)
    if reader is None or (reader is read_yaml and not yaml):
        accepted = "application/json or application/yaml" if yaml else "application/json"
        raise Problem(
            415, "Unsupported media type", f"Send {accepted}, not {given[:80]!r}.", headers={"Accept": accepted}
        )
    return reader


async def parse(body: bytes, reader: Callable[[bytes], Any]) -> Any:
    if reader is read_yaml and len(body) > _SLOW_BYTES:
        return await asyncio.to_thread(reader, body)
    return reader(body)


def validate(model: type[Model], value: Any) -> Model:
    """The value as `model`. Raises Problem 422 with every field that is wrong and what would be valid."""
    if not isinstance(value, dict):
        raise malformed("expected an object with named fields")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        items = field_errors(list(error.errors(include_url=False, include_input=False, include_context=False)))
        detail = "; ".join(f"{item['field']}: {item['message']}" for item in items[:5])
        raise Problem(422, "Invalid request", detail[:2000], errors=items[:100]) from None
