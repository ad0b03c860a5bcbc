"""/v1/dlq, and jobs that are parked: told by the dead-letter topics, shown until it is over."""

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from support.contract import event, until
from support.gateway import Gateway, fields_of
from yard_bus import dead_letters
from yard_bus.dead_letters import OfKey, park
from yard_bus.protocol import PartitionRef, Record
from yard_events.dead_letters import DeadLetterOutcome, DeadLetterResolved
from yard_events.envelope import Envelope
from yard_events.registry import INVENTORY_STATE, JOBS_EVENTS, PLACEMENT_DECISIONS, dead_letter_topic
from yard_gateway.tables import PARKED_JOBS, TABLES
from yard_store.tables import ServiceTables

PLACE = f"{PLACEMENT_DECISIONS}/0/7"


def record(key: str, offset: int, value: bytes = b"{}", topic: str = PLACEMENT_DECISIONS) -> Record:
    return Record(PartitionRef(topic, 0, ""), offset, key, "yard.tests.x.v1", {"ce_id": f"evt-{offset}"}, value)


def letter(service: str, offset: int, parked_at: str, key: str = "a") -> dict[str, Any]:
    return {
        "service": service, "topic": PLACEMENT_DECISIONS, "partition": 0, "offset": offset, "key": key,
        "type": "yard.tests.x.v1", "value_bytes": 2, "error": "KeyError", "parked_at": parked_at,
        "retry_requested_at": None,
    }  # fmt: skip


class Teller:
    """Writes to a service's dead-letter topic as its consumer does."""

    def __init__(self, gateway: Gateway, service: str = "billing") -> None:
        self._gateway = gateway
        self._service = service

    async def parked(self, one: Record, error: str | None = "KeyError: 'x'") -> Envelope:
        return await self._tell(lambda uow: dead_letters._dead_letter(uow, self._service, one, error))

    async def resolved(self, one: Record, outcome: DeadLetterOutcome = DeadLetterOutcome.HANDLED) -> Envelope:
        end, key = DeadLetterResolved(outcome=outcome), OfKey(one.ref.topic, one.ref.partition, one.key)
        return await self._tell(lambda uow: dead_letters._resolved(uow, self._service, key, one.offset, end))

    async def again(self, *told: Envelope) -> None:
        await self._gateway.runtime.bus.publish(told)

    async def settled(self) -> None:
        """Until all that was told is consumed."""
        bus, topic = self._gateway.runtime, dead_letter_topic(self._service)
        await bus.bus.publish([event(1, topic=topic, kind="yard.tests.nothing.v1")])
        async with bus.engine.connect() as connection:
            end = await connection.scalar(
                sa.text(
                    "SELECT max(next_offset) FROM yard_bus.partition p JOIN yard_bus.topic t USING (topic_id) "
                    "WHERE t.name = :topic"
                ),
                {"topic": topic},
            )
        store = self._gateway.service.parts.store

        async def consumed() -> bool:
            return (await store.offsets([topic])).get((topic, 0), ("", 0))[1] == end

        await until(consumed, "the gateway has read the dead letters")

    async def _tell(self, make: Callable[[Any], Envelope]) -> Envelope:
        runtime = self._gateway.runtime
        store = runtime.store(ServiceTables(self._service), self._service)
        async with store.unit_of_work() as uow:
            made = make(uow)
        await runtime.bus.publish([made])
        await self.settled()
        return made


async def parked_of(gateway: Gateway, job_id: str) -> Any:
    [listed] = [job for job in (await gateway.http.get("/v1/jobs")).json()["items"] if job["id"] == job_id]
    shown = (await gateway.http.get(f"/v1/jobs/{job_id}")).json()
    assert listed["parked"] == shown["parked"]
    return shown["parked"]


# --- jobs ---


async def test_a_job_shows_who_parked_what_and_why_until_it_is_handled(gateway: Gateway) -> None:
    job, other = await gateway.submit(), await gateway.submit()
    billing = Teller(gateway)
    assert await parked_of(gateway, job) is None
    first, second = record(job, 7, b"\xff", JOBS_EVENTS), record(job, 8, topic=JOBS_EVENTS)
    told = await billing.parked(first)
    await billing.parked(second, None)
    shown = await parked_of(gateway, job)
    assert shown == {
        "service": "billing", "topic": JOBS_EVENTS, "partition": 0, "offset": 7, "error": "KeyError: 'x'",
        "since": shown["since"], "records": 2,
    }  # fmt: skip
    assert shown["since"].endswith("Z")
    assert shown["since"][:19] == told.time.isoformat()[:19]
    assert await parked_of(gateway, other) is None

    await billing.parked(first, "KeyError: 'y'")
    assert ((await parked_of(gateway, job))["error"], (await parked_of(gateway, job))["records"]) == (
        "KeyError: 'y'",
        2,
    )
    await billing.resolved(first)
    assert ((await parked_of(gateway, job))["offset"], (await parked_of(gateway, job))["error"]) == (8, None)
    await billing.resolved(second)
    assert await parked_of(gateway, job) is None


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b'{"job_id": "JOB", "at": 1}', True),
        (b'{"job_id": 3}', False),
        (b'["JOB"]', False),
        (b"\xff\xfe", False),
        (b"[" * 100_000, False),
        (b'{"job_id": "job-nobody"}', False),
        (b'{"job_id": "job-00000000000000000000000000"}', False),
    ],
)
async def test_where_the_key_is_no_job_the_value_says_which(gateway: Gateway, value: bytes, found: bool) -> None:
    job = await gateway.submit()
    await Teller(gateway).parked(record("local/default", 7, value.replace(b"JOB", job.encode())))
    assert (await parked_of(gateway, job) is not None) is found


async def test_what_several_services_parked_ends_for_each_of_its_own(gateway: Gateway) -> None:
    job = await gateway.submit()
    billing, admission = Teller(gateway), Teller(gateway, "admission")
    one = record(job, 7)
    await billing.parked(one)
    await admission.parked(one, "ValueError")
    assert (await parked_of(gateway, job))["records"] == 2
    await billing.resolved(one, DeadLetterOutcome.DISCARDED)
    assert ((await parked_of(gateway, job))["service"], (await parked_of(gateway, job))["records"]) == ("admission", 1)


async def test_told_again_nothing_changes(gateway: Gateway) -> None:
    job = await gateway.submit()
    billing = Teller(gateway)
    one = record(job, 7)
    told = [await billing.parked(one), await billing.resolved(one), await billing.parked(one, "ValueError")]
    before = await parked_of(gateway, job)
    await billing.again(*told)
    await billing.again(told[1])
    await billing.settled()
    assert await parked_of(gateway, job) == before
    assert before["error"] == "ValueError"
    assert len((await gateway.http.get(f"/v1/jobs/{job}/events")).json()["items"]) == 3


async def test_beginning_and_end_in_one_batch(gateway: Gateway) -> None:
    job = await gateway.submit()
    billing = Teller(gateway)
    one, two = record(job, 7), record(job, 8)
    store = gateway.runtime.store(ServiceTables("billing"), "billing")
    end = DeadLetterResolved(outcome=DeadLetterOutcome.HANDLED)
    async with store.unit_of_work() as uow:
        told = [dead_letters._dead_letter(uow, "billing", each, "KeyError") for each in (one, two)]
        gone = [dead_letters._resolved(uow, "billing", OfKey(PLACEMENT_DECISIONS, 0, job), n, end) for n in (7, 8)]
    await billing.again(told[0], told[1], gone[0], gone[1], dead_letters._dead_letter(uow, "billing", two, "again"))
    await billing.settled()
    shown = await parked_of(gateway, job)
    assert (shown["offset"], shown["error"], shown["records"]) == (8, "again", 1)


async def test_people_hear_of_it(gateway: Gateway) -> None:
    job = await gateway.submit(project="vision")
    one = record(job, 7)
    await Teller(gateway).parked(one)
    await Teller(gateway).resolved(one, DeadLetterOutcome.DISCARDED)
    found = (await gateway.http.get(f"/v1/jobs/{job}/events")).json()["items"]
    name = f"{PLACEMENT_DECISIONS}/0@7"
    assert [(event["type"], event["project"], event["data"]) for event in found] == [
        (
            "yard.dlq.parked.v1",
            "vision",
            {"job_id": job, "service": "billing", "record": name, "error": "KeyError: 'x'"},
        ),
        (
            "yard.dlq.resolved.v1",
            "vision",
            {"job_id": job, "service": "billing", "record": name, "outcome": "discarded"},
        ),
    ]


async def test_a_forgotten_job_takes_it_along(gateway: Gateway) -> None:
    job = await gateway.submit()
    await Teller(gateway).parked(record(job, 7))
    async with gateway.runtime.engine.begin() as connection:
        await connection.execute(sa.text("DELETE FROM gateway.jobs"))
        assert await connection.scalar(sa.select(sa.func.count()).select_from(PARKED_JOBS)) == 0


BROKEN: dict[str, dict[str, Any]] = {
    "no place": {"extra": {}},
    "no number": {"extra": {"yard_dlq_topic": "t", "yard_dlq_partition": "x", "yard_dlq_offset": "1"}},
    "too large": {"extra": {"yard_dlq_topic": "t", "yard_dlq_partition": "0", "yard_dlq_offset": "9" * 30}},
    "an end without an outcome": {"type": "yard.dlq.resolved.v1", "value": b"[]"},
    "a later type": {"type": "yard.dlq.later.v1"},
}


@pytest.mark.parametrize("case", BROKEN)
async def test_nonsense_in_a_dead_letter_topic_parks_nothing(gateway: Gateway, case: str) -> None:
    job = await gateway.submit()
    told = await Teller(gateway).parked(record(job, 7))
    fields = {name: getattr(told, name) for name in Envelope.__dataclass_fields__}
    await gateway.runtime.bus.publish([Envelope(**fields | {"id": "evt-broken"} | BROKEN[case])])
    await Teller(gateway).settled()
    assert (await parked_of(gateway, job))["error"] == "KeyError: 'x'"
    assert (await gateway.http.get("/v1/dlq")).json()["total"] == 0


# --- /v1/dlq ---


async def test_dead_letters_of_all_services_are_listed_oldest_first(gateway: Gateway) -> None:
    gateway.owners.letters = {
        "billing": [letter("billing", 7, "2026-01-02T00:00:00+00:00")],
        "placement": [letter("placement", 8, "2026-01-01T00:00:00+00:00", key="b")],
    }
    async with gateway.service.parts.store.unit_of_work() as uow:
        await park(uow, TABLES, [record("node-1", 3, b"[1]", INVENTORY_STATE)], "Permanent: no")
    answer = (await gateway.http.get("/v1/dlq")).json()
    assert [item["service"] for item in answer["items"]] == ["placement", "billing", "gateway"]
    assert (answer["total"], answer["unavailable"]) == (3, [])
    assert [i["service"] for i in (await gateway.http.get("/v1/dlq?service=billing")).json()["items"]] == ["billing"]
    assert [i["service"] for i in (await gateway.http.get("/v1/dlq?key=b")).json()["items"]] == ["placement"]
    assert len((await gateway.http.get("/v1/dlq?limit=1")).json()["items"]) == 1


async def test_a_service_that_is_away_is_named_and_hides_no_others(gateway: Gateway) -> None:
    gateway.owners.letters = {"billing": [letter("billing", 7, "2026-01-02T00:00:00+00:00")]}
    gateway.owners.silent = {"placement"}
    for answer in (await gateway.http.get("/v1/dlq"), await gateway.http.post("/v1/dlq/retry")):
        assert answer.status_code in (200, 202)
        assert [one["service"] for one in answer.json()["unavailable"]] == ["placement"]
        assert "placement" in answer.json()["unavailable"][0]["detail"]
        assert "billing" in [item["service"] for item in answer.json()["items"]]
    assert (await gateway.http.get(f"/v1/dlq/placement/{PLACE}")).status_code == 503


async def test_one_is_shown_retried_and_discarded_by_its_service(gateway: Gateway) -> None:
    gateway.owners.letters = {"billing": [letter("billing", 7, "2026-01-02T00:00:00+00:00")]}
    gateway.owners.calls.clear()
    shown = await gateway.http.get(f"/v1/dlq/billing/{PLACE}")
    retried = await gateway.http.post(f"/v1/dlq/billing/{PLACE}/retry")
    gone = await gateway.http.delete(f"/v1/dlq/billing/{PLACE}")
    assert (shown.status_code, retried.status_code, gone.status_code) == (200, 202, 200)
    assert retried.json() == {"service": "billing", "key": "a", "records": 1}
    path, admin = f"/internal/billing/dead-letters/{PLACE}", {"name": "admin", "role": "admin", "projects": None}
    assert gateway.owners.calls == [("GET", path, admin), ("POST", f"{path}/retry", admin), ("DELETE", path, admin)]
    assert (await gateway.http.get(f"/v1/dlq/placement/{PLACE}")).status_code == 404
    assert (await gateway.http.get(f"/v1/dlq/nobody/{PLACE}")).status_code == 404


async def test_the_gateways_own_are_decided_here(gateway: Gateway) -> None:
    """One was parked by a mistake that is mended by now; another is given up."""
    job = await gateway.submit()
    fine = record(job, 100, b"{}", JOBS_EVENTS)
    store = gateway.service._consumer.store
    async with store.unit_of_work() as uow:
        await park(uow, TABLES, [fine, record(job, 101, b"\xff", JOBS_EVENTS)], "KeyError: 'x'")
        await park(uow, TABLES, [record("node-1", 3, b"{}", INVENTORY_STATE)], "KeyError: 'x'")
    place = f"/v1/dlq/gateway/{INVENTORY_STATE}/0/3"
    shown = (await gateway.http.get(place)).json()
    assert (shown["value"], shown["value_encoding"], shown["headers"]) == ("{}", "utf-8", {"ce_id": "evt-3"})
    raw = (await gateway.http.get(f"/v1/dlq/gateway/{JOBS_EVENTS}/0/101")).json()
    assert (raw["value"], raw["value_encoding"], raw["behind"]) == ("/w==", "base64", 0)
    assert (await gateway.http.get(f"/v1/dlq/gateway/{JOBS_EVENTS}/0/100")).json()["behind"] == 1

    assert (await gateway.http.delete(place)).json()["behind"] == 0
    assert (await gateway.http.delete(place)).status_code == 404
    asked = await gateway.http.post(f"/v1/dlq/gateway/{JOBS_EVENTS}/0/101/retry")
    assert (asked.status_code, asked.json()) == (202, {"service": "gateway", "key": job, "records": 2})

    async def failed_again() -> bool:
        found = (await gateway.http.get(f"/v1/dlq/gateway/{JOBS_EVENTS}/0/100")).json()
        return "header" in (found["error"] or "")

    await until(failed_again, "what is no CloudEvent failed again")
    assert [e["data"].get("outcome") for e in await events_of_dlq(gateway, job)] == [None, None, None]


async def events_of_dlq(gateway: Gateway, job: str) -> list[dict[str, Any]]:
    await Teller(gateway, "gateway").settled()
    found = (await gateway.http.get(f"/v1/jobs/{job}/events")).json()["items"]
    return [event for event in found if event["type"].startswith("yard.dlq.")]


async def test_only_admins_may(gateway: Gateway) -> None:
    operator = await gateway.caller("op", "operator")
    for method, path in (
        ("GET", "/v1/dlq"),
        ("POST", "/v1/dlq/retry"),
        ("GET", f"/v1/dlq/billing/{PLACE}"),
        ("POST", f"/v1/dlq/billing/{PLACE}/retry"),
        ("DELETE", f"/v1/dlq/billing/{PLACE}"),
    ):
        assert (await operator.request(method, path)).status_code == 403, path
        assert (await gateway.client(None).request(method, path)).status_code == 401, path


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/dlq?service=nobody", "service"),
        ("/v1/dlq?limit=0", "limit"),
        ("/v1/dlq?key=%00", "key"),
        ("/v1/dlq?offset=3", "offset"),
        ("/v1/dlq/billing/t/-1/0", "partition"),
        (f"/v1/dlq/billing/t/0/{2**63}", "offset"),
        ("/v1/dlq/billing/a%00b/0/0", "topic"),
    ],
)
async def test_bad_input_is_named(gateway: Gateway, path: str, field: str) -> None:
    answer = await gateway.http.get(path)
    assert (answer.status_code, fields_of(answer)) == (422, [field])


async def test_answers_are_as_described(gateway: Gateway) -> None:
    gateway.owners.letters = {"billing": [letter("billing", 7, "2026-01-02T00:00:00+00:00")]}
    document = (await gateway.client(None).get("/openapi.json")).json()
    answer = (await gateway.http.get("/v1/dlq")).json()
    content = document["paths"]["/v1/dlq"]["get"]["responses"]["200"]["content"]["application/json"]
    assert set(content["schema"]["required"]) == set(answer)
    assert set(content["schema"]["properties"]["items"]["items"]["required"]) <= set(answer["items"][0])
    assert set(content["example"]["items"][0]) <= set(answer["items"][0])
