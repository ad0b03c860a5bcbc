"""The job document as people write it (YAML or JSON), validated to the field.

Fields of later versions are refused rather than ignored: a request that is not honoured must not look accepted.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from yard_domain import job_spec
from yard_domain.names import NAME_RULE, is_name
from yard_domain.quantities import parse_cpus, parse_duration_seconds, parse_memory_bytes

MAX_DOCUMENT_BYTES = 256 * 1024
MAX_TASKS = 1024
MAX_GPUS_PER_TASK = 64
MAX_ARGUMENT_BYTES = 131_071
"""Linux takes 128 KiB per argument and per environment entry, its end mark included (MAX_ARG_STRLEN)."""


def _name(value: str) -> str:
    if not is_name(value):
        raise ValueError(f"must be {NAME_RULE}")
    return value


def _travels(value: str) -> str:
    """Text that PostgreSQL, JSON and a process's arguments can all carry."""
    if "\0" in value:
        raise ValueError("must not contain NUL characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode, without lone surrogates") from None
    return value


def _argument(value: str) -> str:
    if len(value.encode()) > MAX_ARGUMENT_BYTES:
        raise ValueError(f"must be at most {MAX_ARGUMENT_BYTES} bytes, as the operating system has it")
    return value


def _command(value: list[str]) -> list[str]:
    if not value[0]:
        raise ValueError("must begin with the name of a program")
    return value


def _env(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if len(f"{name}={text}".encode()) > MAX_ARGUMENT_BYTES:
            raise ValueError(f"{name} and its value must be at most {MAX_ARGUMENT_BYTES} bytes together")
    return value


def _env_name(value: str) -> str:
    if not value or value[0].isdigit() or not value.replace("_", "a").isalnum() or not value.isascii():
        raise ValueError("must be letters, digits and '_', not beginning with a digit")
    if value.startswith("YARD_"):
        raise ValueError("names beginning with YARD_ are set by gpuyard itself")
    return value


def _workdir(value: str) -> str:
    if not value.startswith("/") or ".." in value.split("/"):
        raise ValueError("must be an absolute path without '..'")
    return value


StrictStr = Annotated[str, Field(strict=True)]
StrictInt = Annotated[int, Field(strict=True)]
Text = Annotated[StrictStr, AfterValidator(_travels)]
Name = Annotated[StrictStr, AfterValidator(_name)]
Cpus = Annotated[float, BeforeValidator(parse_cpus)]
Duration = Annotated[float, BeforeValidator(parse_duration_seconds)]
Memory = Annotated[int, BeforeValidator(parse_memory_bytes)]
Model = Annotated[StrictStr, StringConstraints(min_length=1, max_length=64), AfterValidator(_travels)]
Argument = Annotated[Text, AfterValidator(_argument)]
EnvName = Annotated[StrictStr, StringConstraints(max_length=256), AfterValidator(_env_name)]
Label = Annotated[StrictStr, StringConstraints(max_length=256), AfterValidator(_travels)]
Workdir = Annotated[StrictStr, StringConstraints(max_length=4096), AfterValidator(_travels), AfterValidator(_workdir)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TasksDocument(_Section):
    """A gang of `count` equal tasks, each with `gpus` whole devices of one node."""

    count: Annotated[StrictInt, Field(ge=1, le=MAX_TASKS, description="How many tasks; they start together.")] = 1
    gpus: Annotated[StrictInt, Field(ge=1, le=MAX_GPUS_PER_TASK, description="Whole devices for each task.")] = 1
    gpu_models: Annotated[
        list[Model], Field(max_length=32, description="Models of devices that will do; none named: all.")
    ] = []
    cpus: Annotated[Cpus | None, Field(description="CPU cores for each task.")] = None
    memory: Annotated[Memory | None, Field(description="Memory for each task, in bytes or as in 64GiB.")] = None


class RunDocument(_Section):
    """What each task runs."""

    command: Annotated[
        list[Argument],
        Field(min_length=1, max_length=4096, description="The program and its arguments; no shell in between."),
        AfterValidator(_command),
    ]
    env: Annotated[
        dict[EnvName, Text],
        Field(max_length=512, description="Environment variables; not for secrets."),
        AfterValidator(_env),
    ] = {}
    workdir: Annotated[Workdir | None, Field(description="Folder on the node in which it starts.")] = None


class LimitsDocument(_Section):
    """What the job must not exceed."""

    max_run_time: Annotated[
        Duration | None, Field(description="Stop it after so long a run, in seconds or as in 1h30m.")
    ] = None


class RetryDocument(_Section):
    """What happens when an attempt fails."""

    max_attempts: Annotated[StrictInt, Field(ge=1, le=20, description="Attempts it has, the first included.")] = 1


class JobDocument(_Section):
    """A job, as people write it."""

    name: Annotated[Name, Field(description=f"What to call it; need not be unique: {NAME_RULE}.")]
    project: Annotated[Name, Field(description="The project, which pays.")] = "default"
    queue: Annotated[Name, Field(description="The queue that it waits in.")] = "default"
    tier: Annotated[job_spec.Tier, Field(description="What kind of work it is.")] = job_spec.Tier.TRAINING
    priority: Annotated[StrictInt, Field(ge=-1000, le=1000, description="Higher goes first in its queue.")] = 0
    tasks: TasksDocument = TasksDocument()
    run: RunDocument
    limits: LimitsDocument = LimitsDocument()
    retry: RetryDocument = RetryDocument()
    labels: Annotated[dict[Name, Label], Field(max_length=64, description="To find it by.")] = {}

    def to_spec(self) -> job_spec.JobSpec:
        """The domain's value of this document."""
        tasks = self.tasks
        return job_spec.JobSpec(
            name=self.name,
            project=self.project,
            queue=self.queue,
            tier=self.tier,
            priority=self.priority,
            tasks=job_spec.TaskShape(tasks.count, tasks.gpus, tuple(tasks.gpu_models), tasks.cpus, tasks.memory),
            run=job_spec.Run(tuple(self.run.command), dict(self.run.env), self.run.workdir),
            max_run_seconds=self.limits.max_run_time,
            max_attempts=self.retry.max_attempts,
            labels=dict(self.labels),
        )

    def to_json_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_none=True)
