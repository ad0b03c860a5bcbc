"""Jobs and events as tables and text."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from yard_client.cli.outcome import parked_record, parked_sentence, sentence
from yard_client.cli.output import ListFormat, age, moment, printable, table_text
from yard_domain.quantities import format_bytes, format_seconds
from yard_domain.reasons import Reason
from yard_domain.reasons import sentence as sentence_of

if TYPE_CHECKING:
    from yard_client.models import Event, Job

_REASONS = frozenset(reason.value for reason in Reason)
# In lists the state says enough about these.
_PLAIN_STATES = frozenset({"running", "succeeded", "starting", "admitted"})
# Already in the columns of an event's line.
_SHOWN_ELSEWHERE = frozenset(
    {"job_id", "project_id", "queue", "name", "at", "state", "reason", "detail", "attempt", "node"}
)


def job_table(jobs: Iterable[Job], now: datetime, style: ListFormat) -> str:
    wide = style == ListFormat.WIDE
    columns = ["ID", "NAME", "PROJECT", "QUEUE", "STATE", "GPUS", "AGE", "TIME"]
    if wide:
        columns += ["TIER", "PRIORITY", "USER", "ATTEMPT", "NODES"]
    rows: list[list[object]] = []
    for job in jobs:
        tasks = job["tasks"]
        row: list[object] = [
            job["id"], job["name"], job["project"], job["queue"], _state(job),
            f"{tasks['count']}×{tasks['gpus']}" if tasks["count"] > 1 else tasks["gpus"],
            age(job["submitted_at"], now), age(job["started_at"], job["ended_at"] or now),
        ]  # fmt: skip
        if wide:
            row += [job["tier"], job["priority"], job["submitted_by"], job["attempt"], _nodes(job)]
        row.append(parked_sentence(job) or ("" if job["state"] in _PLAIN_STATES else _why(job)))
        rows.append(row)
    return table_text([*columns, "WHY"], rows)


def description(job: Job, events: Sequence[Event], now: datetime) -> str:
    """Everything about one job, in sections."""
    lines = [f"{key + ':':<13}{printable(value)}" for key, value in _facts(job, now) if value]
    for title, columns, rows in (
        ("Places", ["TASK", "NODE", "ATTEMPT", "DEVICES"], _place_rows(job)),
        ("Ends", ["TASK", "OUTCOME", "REASON", "EXIT", "SIGNAL", "DETAIL"], _end_rows(job)),
        ("Events", ["TIME (UTC)", "AFTER", "EVENT", "WHAT"], _event_rows(job, events)),
    ):
        if rows:
            lines += [f"{title}:", table_text(columns, rows, indent=2)]
    return "\n".join(lines)


def reason_text(code: str) -> str:
    """The sentence of a reason; the code itself where a newer server has one that this client does not know."""
    return sentence_of(code) if code in _REASONS else code


def event_name(event: Event) -> str:
    """`yard.jobs.running.v1` as `jobs.running`."""
    return event["type"].removeprefix("yard.").rsplit(".v", 1)[0]


def event_text(event: Event) -> str:
    """What an event says, in one line: reason and figures, else its own plain fields."""
    data = event["data"]
    reason, detail = data.get("reason"), data.get("detail")
    said = [text for text in (reason_text(reason) if reason else None, detail) if text]
    if not said:
        said = [
            f"{key}={value}"
            for key, value in data.items()
            if key not in _SHOWN_ELSEWHERE and isinstance(value, str | int | float) and value != ""
        ]
    if data.get("exit_code") is not None and not detail:
        said.append(f"exit code {data['exit_code']}")
    attempt = data.get("attempt")
    return " ".join(([f"attempt {attempt}:"] if isinstance(attempt, int) and attempt > 1 else []) + said)


def _state(job: Job) -> str:
    return f"{job['state']}, parked" if job.get("parked") else job["state"]


def _why(job: Job) -> str:
    text = sentence(job)
    return text.partition(": ")[2]


def _nodes(job: Job) -> str:
    return ",".join(dict.fromkeys(place["node"] for place in job["places"]))


def _facts(job: Job, now: datetime) -> list[tuple[str, str]]:
    run, limits, retry = (_section(job, name) for name in ("run", "limits", "retry"))
    ran = age(job["started_at"], job["ended_at"] or now)
    limit = limits.get("max_run_time")
    attempts = retry.get("max_attempts", 1)
    environment: dict[str, str] = run.get("env") or {}
    parked = job.get("parked")
    since = f", since {moment(parked['since'])}" if parked else ""
    return [
        ("Job", f"{job['id']}  {job['name']}"),
        ("State", sentence(job)),
        ("Parked", f"{parked_sentence(job)}{since}" if parked else ""),
        ("See", parked_record(job) or ""),
        ("Project", f"{job['project']}, queue {job['queue']}, tier {job['tier']}, priority {job['priority']}"),
        ("Submitted", f"{moment(job['submitted_at'])} by {job['submitted_by']}"),
        ("Started", moment(job["started_at"])),
        ("Ended", moment(job["ended_at"])),
        ("Ran for", ran),
        ("Attempt", f"{job['attempt']} of at most {attempts}" if attempts > 1 or job["attempt"] > 1 else ""),
        ("Tasks", _tasks(job)),
        ("Command", shlex.join(run.get("command") or [])),
        ("Workdir", run.get("workdir") or ""),
        ("Environment", " ".join(f"{key}={shlex.quote(value)}" for key, value in environment.items())),
        ("Time limit", limit if isinstance(limit, str) else format_seconds(limit) if limit else ""),
        ("Labels", " ".join(f"{key}={value}" for key, value in job["labels"].items())),
    ]


def _section(job: Job, name: str) -> dict[str, Any]:
    return (job.get("spec") or {}).get(name) or {}


def _tasks(job: Job) -> str:
    tasks = job["tasks"]
    parts = [f"{tasks['count']} × {tasks['gpus']} GPU{'s' if tasks['gpus'] > 1 else ''}"]
    if tasks.get("gpu_models"):
        parts.append("of " + " or ".join(tasks["gpu_models"]))
    if tasks.get("cpus"):
        parts.append(f"with {tasks['cpus']:g} CPUs")
    memory = tasks.get("memory")
    if memory:
        parts.append(f"and {format_bytes(memory)}")
    return " ".join(parts)


def _place_rows(job: Job) -> list[list[object]]:
    return [[p["task_rank"], p["node"], p["attempt"], p["device_uuids"]] for p in job["places"]]


def _end_rows(job: Job) -> list[list[object]]:
    rows: list[list[object]] = []
    for end in job["task_ends"]:
        reason = reason_text(end["reason"])
        rows.append([end["task_rank"], end["outcome"], reason, end["exit_code"], end["signal"], end["detail"]])
    return rows


def _event_rows(job: Job, events: Sequence[Event]) -> list[list[object]]:
    submitted = job["submitted_at"]
    return [[moment(e["time"]), f"+{age(submitted, e['time'])}", event_name(e), event_text(e)] for e in events]


def event_line(event: Event) -> str:
    """One event of a stream, in columns that hold while it runs."""
    subject = event["job_id"] or event["node"] or event["project"] or ""
    where = event["node"] if event["job_id"] and event["node"] else ""
    text = " ".join(part for part in (event_text(event), f"on {where}" if where else "") if part)
    columns = f"{event['seq']:>8}  {moment(event['time'])}  {event_name(event):<24}  {subject:<30}"
    return f"{columns}  {printable(text)}".rstrip()
