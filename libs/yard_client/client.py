"""The synchronous client: one method per call, retries inside, typed answers out."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def new_idempotency_key() -> str:
    return uuid.uuid4().hex


class YardClient:
    """Calls gpuyard's gateway at `url` with a bearer `token`. Close it, or use it in `with`.

    Methods raise Refused (4xx), ServerFault (5xx) or Unreachable. Broken connections and passing answers (503 and its
    kin) are tried again within the policy's budget, as long as doing so cannot do anything twice.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        longest_silence_seconds: float = float("inf"),
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        new_key: Callable[[], str] = new_idempotency_key,
    ) -> None:
        self.url = url
        self._retry = retry
        self._longest_silence_seconds = longest_silence_seconds
        self._sleep = sleep
        self._monotonic = monotonic
        self._new_key = new_key
        direct = transport_options(url)
        transport = httpx.HTTPTransport(**direct) if direct is not None else None
        self._http = httpx.Client(transport=transport, **client_options(url, token))

    @classmethod
    def from_config(cls, config: ClientConfig, **options: Any) -> Self:
        return cls(config.url, config.token, **options)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- jobs ---

    def submit(
        self,
        document: Mapping[str, Any] | bytes,
        *,
        idempotency_key: str | None = None,
        content_type: str = calls.YAML,
    ) -> models.Job:
        """Submits a job document; the same key and document give the same job, however often they are sent."""
        key = idempotency_key or self._new_key()
        return self.send(calls.submit_job(document, idempotency_key=key, content_type=content_type))

    def jobs(
        self,
        *,
        project: str | None = None,
        queue: str | None = None,
        states: Sequence[str] | None = None,
        name: str | None = None,
        label: str | None = None,
        active: bool | None = None,
        limit: int | None = None,
    ) -> Iterator[models.Job]:
        """Jobs without their spec, newest first, page after page; at most `limit` of them."""
        query = calls.params(
            project=project, queue=queue, state=states, name=name, label=label, active=active,
            limit=min(limit or 500, 500),
        )  # fmt: skip
        given = 0
        while True:
            page = self.send(calls.list_jobs(query))
            for job in page["items"]:
                yield job
                given += 1
                if given == limit:
                    return
            cursor = page["next_cursor"]
            if cursor is None:
                return
            query["cursor"] = cursor

    def job(self, job_id: str) -> models.Job:
        return self.send(calls.get_job(job_id))

    def cancel(self, job_id: str) -> models.Job:
        return self.send(calls.cancel_job(job_id))

    def wait(self, job_id: str, timeout_seconds: float = 30.0) -> models.Job:
        """The job once it has ended, or as it is after `timeout_seconds` (a long poll of at most a minute or so)."""
        return self.send(calls.wait_job(job_id, timeout_seconds))

    def job_events(self, job_id: str, *, after: int | None = None, page: int = 500) -> Iterator[models.Event]:
        """What happened to a job so far, oldest first."""
        while True:
            items = self.send(calls.job_events(job_id, after=after, limit=page))["items"]
            yield from items
            if len(items) < page:
                return
            after = items[-1]["seq"]

    def logs(
        self, job_id: str, *, task: int = 0, attempt: int | None = None, offset: int = 0, follow: bool = False
    ) -> Iterator[bytes]:
        """A task's output, byte for byte, from `offset`; a broken stream goes on where it broke."""
        position = LogPosition(offset)

        def call() -> Call[bytes]:
            return calls.job_logs(job_id, task=task, attempt=attempt, offset=position.offset, follow=follow)

        while True:
            begun_at = position.offset
            for chunk in self._stream(call, position.opened):
                position.advance(chunk)
                yield chunk
            # The end of a followed output counts once it is confirmed by an empty read: something between here and
            # the task may end a broken stream as if it were whole.
            if not follow or position.offset == begun_at:
                return

    def events(
        self,
        *,
        project: str | None = None,
        job: str | None = None,
        type: str | None = None,
        after: int | None = None,
    ) -> Iterator[models.Event]:
        """All events from now on, or after the position `after`, without end; reconnects after the last one seen."""
        query = calls.params(project=project, job=job, type=type)
        feed = EventFeed(after)
        while True:
            for chunk in self._stream(lambda: calls.events(query, after=feed.after), feed.opened):
                yield from feed.feed(chunk)
            # The server ended the stream in good order: it stops or restarts.
            self._sleep(self._retry.first_pause_seconds)

    # --- fleet, queues, projects, people ---

    def nodes(self) -> list[models.Node]:
        return self.send(calls.list_nodes())["items"]

    def cordon(self, node: str) -> models.Node:
        return self.send(calls.cordon(node))

    def uncordon(self, node: str) -> models.Node:
        return self.send(calls.uncordon(node))

    def queues(self) -> list[models.Queue]:
        return self.send(calls.list_queues())["items"]

    def set_queue(self, name: str, gpu_quota: int) -> models.Queue:
        return self.send(calls.set_queue(name, gpu_quota))

    def projects(self) -> list[models.Project]:
        return self.send(calls.list_projects())["items"]

    def create_project(self, name: str) -> models.Project:
        return self.send(calls.create_project(name))

    def tokens(self) -> list[models.Token]:
        return self.send(calls.list_tokens())["items"]

    def create_token(self, name: str, role: str, projects: Sequence[str] = ()) -> models.Token:
        """The answer's `token` is the only time that the secret is shown."""
        return self.send(calls.create_token(name, role, projects))

    def revoke_token(self, token_id: str) -> None:
        self.send(calls.revoke_token(token_id))

    def usage(
        self,
        *,
        group_by: str = "project",
        project: str | None = None,
        queue: str | None = None,
        job: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> models.Usage:
        """GPU seconds by group; `since` and `until` are ISO 8601 times."""
        query = calls.params(group_by=group_by, project=project, queue=queue, job=job, since=since, until=until)
        return self.send(calls.usage(query))

    def dead_letters(
        self, *, service: str | None = None, key: str | None = None, limit: int | None = None
    ) -> models.DeadLetterPage:
        """What services could not handle, oldest first. Services that do not answer are named in the page."""
        return self.send(calls.list_dead_letters(calls.params(service=service, key=key, limit=limit)))

    def dead_letter(self, service: str, topic: str, partition: int, offset: int) -> models.ShownDeadLetter:
        return self.send(calls.show_dead_letter(service, topic, partition, offset))

    def retry_dead_letter(self, service: str, topic: str, partition: int, offset: int) -> models.RetriedKey:
        """Has the record's key tried again, all of it and in order."""
        return self.send(calls.retry_dead_letter(service, topic, partition, offset))

    def retry_dead_letters(self, *, service: str | None = None, key: str | None = None) -> models.RetriedServices:
        """Has everything tried again, of all services or one, of all keys or one."""
        return self.send(calls.retry_dead_letters(calls.params(service=service, key=key)))

    def discard_dead_letter(self, service: str, topic: str, partition: int, offset: int) -> models.DiscardedDeadLetter:
        """Gives one record up for good; what queues behind it is tried."""
        return self.send(calls.discard_dead_letter(service, topic, partition, offset))

    def me(self) -> models.Me:
        return self.send(calls.me())

    def audit(self) -> models.Audit:
        return self.send(calls.audit())

    # --- carrying calls out ---

    def send(self, call: Call[Answer]) -> Answer:
        """Carries one call out, retries included."""
        backoff = Backoff(self._retry, self._monotonic())
        while True:
            try:
                response = self._http.send(self._request(call))
            except httpx.TransportError as error:
                self._pause_or_raise(backoff, error, call.idempotent)
                continue
            if is_passing(response) and call.idempotent:
                pause = backoff.pause(self._monotonic(), retry_after_seconds(response))
                if pause is not None:
                    self._sleep(pause)
                    continue
            return cast(Answer, value_of(response))

    def _stream(self, call: Callable[[], Call[Any]], opened: Callable[[httpx.Response], None]) -> Iterator[bytes]:
        """Chunks until the server ends the stream in good order; asks `call` anew after each break."""
        backoff = Backoff(self._retry, self._monotonic())
        while True:
            response: httpx.Response | None = None
            pause: float | None = None
            try:
                response = self._http.send(self._request(call()), stream=True)
                if response.is_success:
                    opened(response)
                    for chunk in response.iter_raw():
                        backoff.succeeded(self._monotonic())
                        yield chunk
                    return
                response.read()
                if is_passing(response):
                    pause = backoff.pause(self._monotonic(), retry_after_seconds(response))
                if pause is None:
                    raise problem_of(response)
            except httpx.TransportError as error:
                self._pause_or_raise(backoff, error, idempotent=True)
            finally:
                if response is not None:
                    response.close()
            if pause is not None:
                self._sleep(pause)

    def _request(self, call: Call[Any]) -> httpx.Request:
        return self._http.build_request(
            call.method, call.path, params=call.params, content=call.content, headers=call.headers,
            timeout=timeout(call.timeout_seconds, self._longest_silence_seconds),
        )  # fmt: skip

    def _pause_or_raise(self, backoff: Backoff, error: httpx.TransportError, idempotent: bool) -> None:
        pause = backoff.pause(self._monotonic()) if may_try_again(error, idempotent=idempotent) else None
        if pause is None:
            raise Unreachable(self.url, cause_of(error)) from error
        self._sleep(pause)
