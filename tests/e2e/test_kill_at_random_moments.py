"""kill -9 of random processes at random moments while 200 short jobs run; afterwards everything has to add up."""

import json
import os
import random
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.installation import Installation, installation, kill, until
from support.kafka_installation import own_topics

JOBS = 200
KILLS = 14
SCRIPT = """
echo "$YARD_JOB_ID" >> {marks}/ran
for uuid in $(echo "$CUDA_VISIBLE_DEVICES" | tr , ' '); do
    mkdir {marks}/held-$uuid || echo "$uuid" >> {marks}/double-booked
done
sleep {seconds}
echo "output of $YARD_JOB_ID"
for uuid in $(echo "$CUDA_VISIBLE_DEVICES" | tr , ' '); do rmdir {marks}/held-$uuid; done
echo "$YARD_JOB_ID" >> {marks}/completed
{end}
"""
ENDS = {"succeeded": "exit 0", "failed": "exit 9", "signalled": "kill -KILL $$"}


@dataclass(frozen=True)
class Submitted:
    job_id: str
    expected: str


def submit_all(made: Installation, marks: Path, chance: random.Random) -> list[Submitted]:
    """Submit through all disturbances, as a client does: the same key again until there is an answer."""
    done: list[Submitted] = []
    with made.client() as client:
        for number in range(JOBS):
            expected = chance.choices(list(ENDS), weights=[8, 1, 1])[0]
            script = SCRIPT.format(marks=marks, seconds=round(chance.uniform(0.0, 0.4), 2), end=ENDS[expected])
            document = {
                "name": f"job-{number}",
                "tasks": {"gpus": chance.choice([1, 1, 1, 2, 4])},
                "run": {"command": ["sh", "-c", script]},
            }
            answer = until(lambda d=document, n=number: _try(client, d, f"chaos-{n}"), 60, "a submission is accepted")
            done.append(Submitted(answer["id"], expected))
    return done


def _try(client: httpx.Client, document: dict[str, Any], key: str) -> dict[str, Any] | None:
    try:
        answer = client.post("/v1/jobs", json=document, headers={"idempotency-key": key})
    except httpx.TransportError:
        return None
    return answer.json() if answer.status_code in (200, 201) else None


class Killer(threading.Thread):
    """Kills one random process at a time, KILLS times at random moments: some find a process that has just begun,
    some one that has been at work for a while."""

    def __init__(self, made: Installation, chance: random.Random, keepers: bool) -> None:
        super().__init__(daemon=True)
        self._made = made
        self._chance = chance
        self._keepers = keepers
        self._tick = threading.Event()
        self.killed: Counter[str] = Counter()

    def run(self) -> None:
        while sum(self.killed.values()) < KILLS:
            self._tick.wait(self._chance.uniform(0.3, 3.5))
            targets: list[tuple[str, int]] = list(self._made.pids().items())
            if (postmaster := self._made.postmaster_pid()) is not None:
                targets.append(("postgres", postmaster))
            if self._keepers:
                targets += [("keeper", pid) for pid in self._made.keeper_pids()]
            if targets:
                name, pid = self._chance.choice(sorted(targets))
                kill(pid)
                self.killed[name] += 1


@pytest.mark.parametrize("keepers", [False, True], ids=["never the keeper", "the keeper too"])
def test_every_job_ends_right_and_runs_once(keepers: bool) -> None:
    with installation("--nodes", "2", "--devices", "4xH100-80GB") as made:
        _kill_and_add_up(made, keepers)


def test_on_kafka_with_two_instances_of_every_service_too(kafka: str) -> None:
    arguments = ("--nodes", "2", "--devices", "4xH100-80GB", "--kafka", kafka, "--instances", "2")
    with installation(*arguments) as made, own_topics(made, kafka):
        _kill_and_add_up(made, keepers=False)


def _kill_and_add_up(made: Installation, keepers: bool) -> None:
    seed = int(os.environ.get("YARD_TEST_SEED", "42"))
    made.up()
    marks = made.root / "marks"
    marks.mkdir()
    killer = Killer(made, random.Random(seed), keepers)
    killer.start()
    jobs = submit_all(made, marks, random.Random(seed + 1))
    killer.join(120)
    assert sum(killer.killed.values()) == KILLS
    assert len(killer.killed) >= 4, killer.killed  # of control, engine, agents, postgres, keeper
    _until_all_ended(made, jobs)
    states = _states(made, jobs)
    _check_ends(made, jobs, states, _lines(marks / "ran"), _lines(marks / "completed"), keepers)
    assert not (marks / "double-booked").exists() or keepers
    until(lambda: not made.marked_processes(), 20, "no process of a task is left")
    until(lambda: made.json("audit")["findings"] == [] or None, 30, "the audit is clean")
    held = [device for node in made.json("nodes")["items"] for device in node["devices"] if device["allocation_id"]]
    assert held == []
    assert made.interrupt() == 0


def _lines(path: Path) -> Counter[str]:
    return Counter(path.read_text().split()) if path.exists() else Counter()


def _states(made: Installation, jobs: list[Submitted]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    with made.client() as client:
        cursor = None
        while len(found) < len(jobs):
            page = client.get("/v1/jobs", params={"limit": 200} | ({"cursor": cursor} if cursor else {})).json()
            found |= {job["id"]: job for job in page["items"]}
            cursor = page["next_cursor"]
            if cursor is None:
                break
    return found


def _until_all_ended(made: Installation, jobs: list[Submitted]) -> None:
    """The last killed process may still be on its way back, so the API may be away at first."""

    def ended() -> bool:
        try:
            states = _states(made, jobs)
        except (httpx.HTTPError, json.JSONDecodeError, KeyError):
            return False
        live = [job for job in states.values() if job["state"] not in ("succeeded", "failed")]
        return len(states) >= JOBS and not live

    until(ended, 120, "all jobs have ended")


def _check_ends(
    made: Installation,
    jobs: list[Submitted],
    states: dict[str, dict[str, Any]],
    ran: Counter[str],
    completed: Counter[str],
    keepers: bool,
) -> None:
    """Exactly once; after a keeper's death at most once, and said so."""
    lost = {job_id for job_id, job in states.items() if job["reason"] == "keeper_lost"}
    assert keepers or not lost
    wrong: list[str] = []
    for job in jobs:
        seen = states[job.job_id]
        if ran[job.job_id] > 1:
            wrong.append(f"{job.job_id} ran {ran[job.job_id]} times")
        if job.job_id in lost:
            continue
        end = {"succeeded": ("succeeded", 0), "failed": ("failed", 9), "signalled": ("failed", None)}[job.expected]
        if (seen["state"], seen["exit_code"]) != end:
            wrong.append(f"{job.job_id}: {seen['state']} {seen['reason']} {seen['exit_code']}, expected {end}")
        if completed[job.job_id] != 1:
            wrong.append(f"{job.job_id} completed {completed[job.job_id]} times")
    assert not wrong, "\n".join(wrong[:20]) + made.logs()
