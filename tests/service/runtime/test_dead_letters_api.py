"""Dead letters over a service's internal HTTP, and who is let in there."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from support.contract import ALL, ONE, Counted, Recorder, contract_store, effects, event, parked, until
from yard_domain.errors import Permanent
from yard_runtime.host import ServiceHost, server_for
from yard_runtime.http import client_for, install_problem_handlers
from yard_runtime.service import EventService, Runtime
from yard_store.unit_of_work import Store, UnitOfWork

ALICE = {"x-yard-principal": json.dumps({"name": "alice", "role": "admin", "projects": None})}


@dataclass
class Broken:
    """A running service whose handler refuses number 2 until it is mended."""

    service: EventService
    store: Store
    recorder: Recorder
    http: httpx.AsyncClient
    bad: set[int]


@pytest.fixture
async def broken(runtime: Runtime) -> AsyncIterator[Broken]:
    await runtime.bus.ensure_topics(ALL)
    store = await contract_store(runtime)
    bad = {2}

    def refuse(n: int, _uow: UnitOfWork) -> None:
        if n in bad:
            raise Permanent("no two")

    recorder = Recorder(refuse)
    service = EventService("contract", store, runtime.bus, "one", {ONE.name: recorder})
    install_problem_handlers(service.api())
    running = asyncio.create_task(service.run(lambda: None))
    await runtime.bus.publish([event(1), event(2), event(3), event(4, "b", value=b"\xff\xfe"), event(5, "c")])
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(service.api()), base_url="http://one") as http:
            await recorder.until(1, 5)
            yield Broken(service, store, recorder, http, bad)
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_they_are_listed_oldest_first_by_key_and_up_to_a_limit(broken: Broken) -> None:
    answer = (await broken.http.get("/dead-letters")).json()
    found = [(item["key"], item["offset"], item["error"]) for item in answer["items"]]
    assert found[:2] == [("a", 1, "Permanent: no two"), ("a", 2, None)]
    assert found[2][:2] == ("b", 3)
    assert answer["total"] == 3
    assert "value" not in answer["items"][0]
    of_b = (await broken.http.get("/dead-letters?key=b")).json()
    assert ([item["offset"] for item in of_b["items"]], of_b["total"]) == ([3], 1)
    first = (await broken.http.get("/dead-letters?limit=1")).json()
    assert ([item["offset"] for item in first["items"]], first["total"]) == ([1], 3)


async def test_a_value_is_shown_as_json_or_in_base64(broken: Broken) -> None:
    shown = (await broken.http.get(f"/dead-letters/{ONE.name}/0/1")).json()
    assert Counted.model_validate_json(shown["value"]) == Counted(k="a", n=2)
    assert (shown["value_encoding"], shown["behind"], shown["error"]) == ("utf-8", 1, "Permanent: no two")
    assert shown["headers"]["ce_id"] == event(2).id
    assert shown["value_bytes"] == len(event(2).value)
    raw = (await broken.http.get(f"/dead-letters/{ONE.name}/0/3")).json()
    assert (raw["value"], raw["value_encoding"]) == ("//4=", "base64")


async def test_a_key_is_tried_again(broken: Broken) -> None:
    broken.bad.clear()
    answer = await broken.http.post(f"/dead-letters/{ONE.name}/0/2/retry")
    assert answer.json() == {"key": "a", "records": 2}
    await broken.recorder.until(2, 3)
    assert await parked(broken.store) == [("b", 3, True)]
    assert [n for key, n in await effects(broken.store) if key == "a"] == [1, 2, 3]


async def test_everything_is_tried_again(broken: Broken) -> None:
    broken.bad.clear()
    assert (await broken.http.post("/dead-letters/retry?key=b")).json() == {"records": 1}
    assert (await broken.http.post("/dead-letters/retry")).json() == {"records": 3}
    await broken.recorder.until(2, 3)

    async def failed_again() -> bool:
        [item] = (await broken.http.get("/dead-letters?key=b")).json()["items"]
        return item["retry_requested_at"] is None

    await until(failed_again, "broken bytes stay broken")


async def test_one_is_discarded_and_those_behind_it_are_tried(broken: Broken) -> None:
    gone = (await broken.http.delete(f"/dead-letters/{ONE.name}/0/1", headers=ALICE)).json()
    assert (gone["key"], gone["offset"], gone["behind"]) == ("a", 1, 1)
    await broken.recorder.until(3)
    assert [n for key, n in await effects(broken.store) if key == "a"] == [1, 3]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_what_is_not_there_is_404(broken: Broken, method: str) -> None:
    answer = await broken.http.request(method, f"/dead-letters/{ONE.name}/0/77")
    assert (answer.status_code, ONE.name in answer.json()["detail"]) == (404, True)
    assert (await broken.http.post(f"/dead-letters/{ONE.name}/0/77/retry")).status_code == 404
    assert len(await parked(broken.store)) == 3


async def test_before_the_service_was_ever_active_it_says_so(runtime: Runtime) -> None:
    await runtime.bus.ensure_topics(ALL)
    service = EventService("contract", await contract_store(runtime), runtime.bus, "one", {ONE.name: Recorder()})
    install_problem_handlers(service.api())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(service.api()), base_url="http://one") as http:
        answer = await http.post("/dead-letters/retry")
    assert (answer.status_code, "starting" in answer.json()["detail"]) == (503, True)


# --- who is let in ---


@asynccontextmanager
async def hosted(*services: Any, path: Path) -> AsyncIterator[str]:
    address = f"unix:{path}"
    server = server_for(ServiceHost(services, listen=address, internal_token="secret")._app(), address)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started, "it listens")
    try:
        yield address
    finally:
        server.should_exit = True
        await serving


async def test_nobody_comes_in_without_the_internal_token(broken: Broken, tmp_path: Path) -> None:
    """Routes that a service made itself, and those that every service has."""
    own = FastAPI()

    @own.get("/own")
    async def read() -> dict[str, str]:
        return {}

    service = replace(broken.service, http=own)
    async with hosted(service, path=tmp_path / "s") as address:
        for token, status in (("secret", 200), ("guess", 401), ("secret2", 401), (None, 401), ("sécret", 401)):
            headers = {} if token is None else {"authorization": f"Bearer {token}".encode()}
            async with client_for(address) as client:
                for path in ("/internal/contract/own", "/internal/contract/dead-letters"):
                    assert (await client.get(path, headers=headers)).status_code == status, (token, path)
                discarding = await client.delete(f"/internal/contract/dead-letters/{ONE.name}/0/99", headers=headers)
                assert discarding.status_code == (404 if status == 200 else 401)
                assert (await client.get("/healthz", headers=headers)).status_code == 200
    assert len(await parked(broken.store)) == 3
