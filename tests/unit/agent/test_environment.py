"""What a task finds in its environment."""

import pytest

from yard_agent.environment import task_environment
from yard_events.job_document import RunDocument
from yard_events.types import TaskWork


def work(**changes: object) -> TaskWork:
    fields: dict[str, object] = {
        "job_id": "job-1",
        "project_id": "vision",
        "name": "train",
        "attempt": 2,
        "attempt_id": "job-1/2",
        "task_rank": 5,
        "world_size": 8,
        "local_rank": 1,
        "local_world_size": 4,
        "device_uuids": ["GPU-a", "GPU-b"],
        "run": RunDocument(command=["true"]),
    }
    return TaskWork.model_validate(fields | changes)


def environment(base: dict[str, str] | None = None, **changes: object) -> dict[str, str]:
    return task_environment(
        work=work(**changes),
        allocation_id="alloc-1",
        node="n1",
        visible_devices="GPU-a,GPU-b",
        base=base or {},
        master_addr="10.0.0.1",
        master_port=29500,
    )


def test_all_of_ours() -> None:
    assert environment() == {
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "YARD_JOB_ID": "job-1",
        "YARD_JOB_NAME": "train",
        "YARD_PROJECT": "vision",
        "YARD_ATTEMPT": "2",
        "YARD_ALLOCATION_ID": "alloc-1",
        "YARD_TASK_RANK": "5",
        "YARD_NODE": "n1",
        "YARD_GPU_UUIDS": "GPU-a,GPU-b",
    }


def test_only_the_named_part_of_the_base_is_inherited() -> None:
    base = {"PATH": "/bin", "HOME": "/root", "LANG": "C", "TMPDIR": "/t", "USER": "u", "YARD_TOKEN": "secret", "X": "1"}
    inherited = environment(base).items() - environment().items()
    assert dict(inherited) == {"PATH": "/bin", "HOME": "/root", "LANG": "C", "TMPDIR": "/t", "USER": "u"}


def test_the_user_may_set_the_base_anew_and_none_of_ours() -> None:
    user = {"PATH": "/mine", "EPOCHS": "3", "RANK": "0", "CUDA_VISIBLE_DEVICES": "all", "MASTER_PORT": "1"}
    found = environment({"PATH": "/bin"}, run=RunDocument(command=["true"], env=user))
    assert (found["PATH"], found["EPOCHS"]) == ("/mine", "3")
    assert (found["RANK"], found["CUDA_VISIBLE_DEVICES"], found["MASTER_PORT"]) == ("5", "GPU-a,GPU-b", "29500")


def test_without_a_rendezvous_its_variables_are_absent() -> None:
    found = task_environment(work=work(), allocation_id="a", node="n", visible_devices="", base={})
    assert "MASTER_ADDR" not in found
    assert "MASTER_PORT" not in found
    assert found["CUDA_VISIBLE_DEVICES"] == "", "set, though empty: an absent one would show every device"


TRACE = {"traceparent": "00-a-b-01", "tracestate": "v=1"}


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ({}, {"TRACEPARENT": "00-a-b-01", "TRACESTATE": "v=1"}),
        ({"TRACEPARENT": "mine"}, {"TRACEPARENT": "mine"}),
        ({"TRACEPARENT": "mine", "TRACESTATE": "m=1"}, {"TRACEPARENT": "mine", "TRACESTATE": "m=1"}),
        ({"TRACESTATE": "m=1"}, {"TRACEPARENT": "00-a-b-01", "TRACESTATE": "m=1"}),
    ],
)
def test_the_trace_is_given_unless_the_job_says_its_own(own: dict[str, str], found: dict[str, str]) -> None:
    made = task_environment(
        work=work(run=RunDocument(command=["true"], env=own)),
        allocation_id="a",
        node="n1",
        visible_devices="",
        base={"TRACEPARENT": "the agent's own"},
        trace=TRACE,
    )
    assert {name: value for name, value in made.items() if name.startswith("TRACE")} == found


def test_without_a_trace_nothing_is_said_of_one() -> None:
    assert not [name for name in environment({"TRACEPARENT": "the agent's own"}) if name.startswith("TRACE")]
