"""The asynchronous client, for programs that follow many things at once. It carries out the calls of `calls`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import httpx

from yard_client import calls, models
from yard_client.answers import problem_of, value_of
from yard_client.calls import Call
from yard_client.config import ClientConfig
from yard_client.errors import Unreachable
from yard_client.retry import Backoff, RetryPolicy, cause_of, is_passing, may_try_again, retry_after_seconds
from yard_client.streams import EventFeed, LogPosition
from yard_client.transport import client_options, timeout, transport_options

Answer = TypeVar("Answer")


class AsyncYardClient:
    """As YardClient, for asyncio: `await client.send(calls.get_job(id))`; logs and events are async iterators."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        self.url = url
        self._retry = retry
        self._monotonic = monotonic or (lambda: asyncio.get_running_loop().time())
        direct = transport_options(url)
        transport = httpx.AsyncHTTPTransport(**direct) if direct is not None else None
        self._http = httpx.AsyncClient(transport=transport, **client_options(url, token))

    @classmethod
    def from_config(cls, config: ClientConfig, **options: Any) -> Self:
        return cls(config.url, config.token, **options)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def send(self, call: Call[Answer]) -> Answer:
        """Carries one call out, retries included. Raises Refused, ServerFault or Unreachable."""
        backoff = Backoff(self._retry, self._monotonic())
        while True:
            try:
                response = await self._http.send(self._request(call))
            except httpx.TransportError as error:
                await self._pause_or_raise(backoff, error, call.idempotent)
                continue
            if is_passing(response) and call.idempotent:
                pause = backoff.pause(self._monotonic(), retry_after_seconds(response))
                if pause is not None:
                    await asyncio.sleep(pause)
                    continue
            return cast(Answer, value_of(response))

    async def logs(
        self, job_id: str, *, task: int = 0, attempt: int | None = None, offset: int = 0, follow: bool = False
    ) -> AsyncIterator[bytes]:
        """A task's output, byte for byte, from `offset`; a broken stream goes on where it broke."""
        position = LogPosition(offset)

        def call() -> Call[bytes]:
            return calls.job_logs(job_id, task=task, attempt=attempt, offset=position.offset, follow=follow)

        while True:
            begun_at = position.offset
            async for chunk in self._stream(call, position.opened):
                position.advance(chunk)
                yield chunk
            # The end of a followed output counts once it is confirmed by an empty read: something between here and
            # the task may end a broken stream as if it were whole.
            if not follow or position.offset == begun_at:
                return

    async def events(
        self,
        *,
        project: str | None = None,
        job: str | None = None,
        type: str | None = None,
        after: int | None = None,
    ) -> AsyncIterator[models.Event]:
        """All events from now on, or after the position `after`, without end; reconnects after the last one seen."""
        query = calls.params(project=project, job=job, type=type)
        feed = EventFeed(after)
        while True:
            async for chunk in self._stream(lambda: calls.events(query, after=feed.after), feed.opened):
                for event in feed.feed(chunk):
                    yield event
            await asyncio.sleep(self._retry.first_pause_seconds)

    async def _stream(
        self, call: Callable[[], Call[Any]], opened: Callable[[httpx.Response], None]
    ) -> AsyncIterator[bytes]:
        backoff = Backoff(self._retry, self._monotonic())
        while True:
            response: httpx.Response | None = None
            pause: float | None = None
            try:
                response = await self._http.send(self._request(call()), stream=True)
                if response.is_success:
                    opened(response)
                    async for chunk in response.aiter_raw():
                        backoff.succeeded(self._monotonic())
                        yield chunk
                    return
                await response.aread()
                if is_passing(response):
                    pause = backoff.pause(self._monotonic(), retry_after_seconds(response))
                if pause is None:
                    raise problem_of(response)
            except httpx.TransportError as error:
                await self._pause_or_raise(backoff, error, idempotent=True)
            finally:
                if response is not None:
                    await response.aclose()
            if pause is not None:
                await asyncio.sleep(pause)

    def _request(self, call: Call[Any]) -> httpx.Request:
        return self._http.build_request(
            call.method, call.path, params=call.params, content=call.content, headers=call.headers,
            timeout=timeout(call.timeout_seconds),
        )  # fmt: skip

    async def _pause_or_raise(self, backoff: Backoff, error: httpx.TransportError, idempotent: bool) -> None:
        pause = backoff.pause(self._monotonic()) if may_try_again(error, idempotent=idempotent) else None
        if pause is None:
            raise Unreachable(self.url, cause_of(error)) from error
        await asyncio.sleep(pause)
