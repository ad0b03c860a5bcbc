"""The audit on a sound installation, and on one in which each invariant in turn was broken by hand."""

from pathlib import Path

import pytest
import sqlalchemy as sa

import yard_admission
import yard_billing
import yard_gateway
import yard_inventory
import yard_placement
from yard_allinone.audit.audit import audit, read
from yard_allinone.audit.checks import CHECKS
from yard_runtime.service import Runtime
from yard_store.migrations import migrate

SERVICES = {
    "gateway": yard_gateway,
    "admission": yard_admission,
    "placement": yard_placement,
    "inventory": yard_inventory,
    "billing": yard_billing,
}

SOUND = """
INSERT INTO placement.nodes (name, pool_key, state, epoch, cpus, memory_bytes)
VALUES ('n1', 'local/default', 'ready', 'b/j', 8, 1000);
INSERT INTO placement.devices VALUES
    ('GPU-0', 'n1', 0, 'H100', 80, true, true, 'job-1-a1.t0'), ('GPU-1', 'n1', 1, 'H100', 80, true, true, NULL);
INSERT INTO placement.attempts (attempt_id, job_id, project_id, attempt, queue, name, pool_key, priority, submitted_at,
    pending_since, spec, state, attention)
VALUES ('job-1-a1', 'job-1', 'p', 1, 'default', 'a', 'local/default', 0, now(), now(),
    '{"tasks": {"count": 1, "gpus": 1}, "run": {}}', 'running', false);
INSERT INTO placement.allocations (allocation_id, attempt_id, job_id, project_id, task_rank, node, epoch, device_uuids,
    cpus, memory_bytes, state, command_seq, command_type, command, commanded_at, granted_at, billed_since)
VALUES ('job-1-a1.t0', 'job-1-a1', 'job-1', 'p', 0, 'n1', 'b/j', '["GPU-0"]', 4, 500, 'held', 1, 'start', '{}',
    now(), now(), now());
UPDATE admission.queues SET used_gpus = 1 WHERE name = 'default';
INSERT INTO admission.queues (name, gpu_quota, used_gpus) VALUES ('default', 8, 1) ON CONFLICT DO NOTHING;
INSERT INTO admission.jobs (job_id, project_id, queue, name, priority, submitted_at, total_gpus, max_attempts, work,
    state, attempt, place_no, attempt_id, placed, claimed_gpus, queued_at, started, run_used_seconds, waiting, untold)
VALUES ('job-1', 'p', 'default', 'a', 0, now(), 1, 1, '{}', 'running', 1, 1, 'job-1-a1', true, 1, now(), true, 0,
    false, false);
INSERT INTO gateway.jobs (job_id, seq, name, project, queue, tier, priority, state, attempt, tasks, document, labels,
    submitted_by, submitted_at, places, agents, task_ends, fact_offset)
VALUES ('job-1', 1, 'a', 'p', 'default', 'training', 0, 'running', 1, '{}', '{}', '{}', 't', now(), '[]', '[]', '[]',
    1);
INSERT INTO billing.accounts (allocation_id, project_id, queue, job_id, attempt, devices, spans, open_since,
    ledger_time, released)
VALUES ('job-1-a1.t0', 'p', 'default', 'job-1', 1, '{"H100": 1}', 1, now(), now(), false)
"""

BROKEN = {
    "a device is held by nobody who lists it": (
        "UPDATE placement.devices SET allocation_id = 'x' WHERE uuid = 'GPU-1'",
        0,
    ),
    "a granted device is free": ("UPDATE placement.devices SET allocation_id = NULL", 0),
    "more CPU cores booked than there are": ("UPDATE placement.nodes SET cpus = 2", 1),
    "more memory booked than there is": ("UPDATE placement.nodes SET memory_bytes = 2", 1),
    "two live attempts": (
        "INSERT INTO placement.attempts (attempt_id, job_id, project_id, attempt, queue, name, pool_key, priority, "
        "submitted_at, pending_since, spec, state, attention) SELECT 'job-1-a2', job_id, project_id, 2, queue, name, "
        "pool_key, priority, submitted_at, pending_since, spec, 'pending', false FROM placement.attempts",
        2,
    ),
    "half a gang": (
        """UPDATE placement.attempts SET spec = jsonb_set(spec, '{tasks,count}', '2')""",
        3,
    ),
    "a queue's usage is not its claims": ("UPDATE admission.queues SET used_gpus = 3 WHERE name = 'default'", 4),
    "a claim without an attempt": ("UPDATE admission.jobs SET attempt_id = 'gone'", 5),
    "a running job without an attempt": ("UPDATE placement.attempts SET state = 'ended'", 6),
    "people are shown another state": ("UPDATE gateway.jobs SET state = 'queued'", 7),
    "a job that nobody can see": ("DELETE FROM gateway.jobs", 7),
    "a parked event": (
        "INSERT INTO billing.parked VALUES ('t', 0, 1, 'k', 'x', '{}', '', 'KeyError', now())",
        8,
    ),
    "released without a bill": (
        "UPDATE placement.allocations SET released_at = granted_at + interval '5 s', outcome = 'succeeded', "
        "emptied = true",
        9,
    ),
    "granted but not metered": ("UPDATE billing.accounts SET open_since = NULL", 10),
    "handed on before it was empty": ("UPDATE placement.allocations SET released_at = granted_at", 11),
}


async def _execute(runtime: Runtime, script: str) -> None:
    async with runtime.engine.begin() as connection:
        for statement in script.split(";\n"):
            await connection.execute(sa.text(statement.replace(":", "\\:")))


@pytest.fixture
async def sound(runtime: Runtime) -> Runtime:
    for schema, package in SERVICES.items():
        (folder,) = package.__path__
        await migrate(runtime.engine, schema, Path(folder) / "migrations")
    await _execute(runtime, SOUND)
    return runtime


async def test_a_sound_installation_has_no_findings(sound: Runtime) -> None:
    report = await audit(sound.engine, sound.clock, pause_seconds=0)
    assert report["findings"] == []
    assert [check["ok"] for check in report["checks"]] == [True] * len(CHECKS)


@pytest.mark.parametrize(("script", "check"), BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_invariant_is_found(sound: Runtime, script: str, check: int) -> None:
    await _execute(sound, script)
    report = await audit(sound.engine, sound.clock, pause_seconds=0)
    assert not report["checks"][check]["ok"], report
    found = [f for f in report["findings"] if f["message"].endswith(CHECKS[check].title)]
    assert found[0]["rows"]


def test_every_check_is_shown_to_find_something() -> None:
    assert {check for _, check in BROKEN.values()} == set(range(len(CHECKS)))


async def test_a_key_behind_which_more_and_more_queues_is_a_finding_all_the_same(sound: Runtime) -> None:
    parked = "INSERT INTO billing.parked VALUES ('t', 0, {}, 'k', 'x', '{{}}', '', {}, now())"
    await _execute(sound, parked.format(1, "'KeyError'"))

    class Busy:
        """Between two readings another event of the key arrives."""

        now = staticmethod(sound.clock.now)
        offset = 1

        async def sleep(self, _seconds: float) -> None:
            self.offset += 1
            await _execute(sound, parked.format(self.offset, "NULL"))

    [finding] = (await audit(sound.engine, Busy(), pause_seconds=1))["findings"]
    assert finding["rows"] == [{"parked": "billing/t/k", "error": "KeyError", "see": "yard dlq show billing t/0@1"}]


async def test_what_changes_between_two_readings_is_no_finding(sound: Runtime) -> None:
    await _execute(sound, "UPDATE gateway.jobs SET state = 'queued'")
    assert any((await read(sound.engine)).rows)

    class CaughtUp:
        """The pause between two readings is when the late fact arrives."""

        now = staticmethod(sound.clock.now)

        async def sleep(self, _seconds: float) -> None:
            await _execute(sound, "UPDATE gateway.jobs SET state = 'running'")

    assert (await audit(sound.engine, CaughtUp(), pause_seconds=1))["findings"] == []
