"""Every metric, span and attribute of gpuyard, once: code records nothing else, and dashboards name nothing else.

Metrics of our own are `yard.*`; what OpenTelemetry's semantic conventions (1.44) name has their names: `http.*`,
`hw.*`, `messaging.*`. Units are UCUM codes. No job id is a label, and a GPU's UUID only of the per-device metrics.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class NotInCatalogue(LookupError):
    """A metric, label, span or attribute that the catalogue does not have: a mistake in the program."""


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """`labels` are all there, always. `buckets`: the upper bounds of a histogram's buckets, in `unit`."""

    name: str
    kind: Kind
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)  # as in semconv
_WAIT_SECONDS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0)
_BATCH_EVENTS = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0)
_DEVICE = ("node", "hw.id", "hw.name", "hw.model")

JOB_COUNT = Metric("yard.job.count", Kind.GAUGE, "{job}", "Jobs that have not ended.", ("state", "queue"))
ADMISSION_WAIT = Metric(
    "yard.admission.wait.duration",
    Kind.HISTOGRAM,
    "s",
    "From when a job began to wait in its queue to its admission.",
    ("queue",),
    _WAIT_SECONDS,
)
CYCLE_DURATION = Metric(
    "yard.scheduler.cycle.duration",
    Kind.HISTOGRAM,
    "s",
    "One cycle of a scope, by phase.",
    ("service", "phase"),
    _SECONDS,
)
DECISIONS = Metric(
    "yard.scheduler.decisions",
    Kind.COUNTER,
    "{decision}",
    "What cycles decided, and why.",
    ("outcome", "reason"),
)
GPU_ALLOCATION = Metric(
    "yard.gpu.allocation",
    Kind.GAUGE,
    "{device}",
    "Devices by what placement's ledger says of them: free, allocated, dirty or unhealthy.",
    ("pool", "model", "state"),
)
GPU_FRAGMENTATION = Metric(
    "yard.gpu.fragmentation",
    Kind.GAUGE,
    "1",
    "Share of a pool's free devices that do not stand on an empty node.",
    ("pool",),
)
OUTBOX_OLDEST_AGE = Metric(
    "yard.outbox.oldest.age", Kind.GAUGE, "s", "Age of the oldest event that is not on the bus yet.", ("service",)
)
OUTBOX_SIZE = Metric(
    "yard.outbox.size", Kind.GAUGE, "{event}", "Committed events that are not on the bus yet.", ("service",)
)
CONSUMER_LAG = Metric(
    "yard.consumer.lag",
    Kind.GAUGE,
    "{event}",
    "Events of a partition that the service has not consumed yet.",
    ("service", "topic", "partition"),
)
BATCH_SIZE = Metric(
    "yard.consumer.batch.size",
    Kind.HISTOGRAM,
    "{event}",
    "Events that were consumed in one transaction.",
    ("service", "topic"),
    _BATCH_EVENTS,
)
HANDLER_DURATION = Metric(
    "yard.consumer.handler.duration",
    Kind.HISTOGRAM,
    "s",
    "One batch, from its first statement to its commit.",
    ("service", "topic"),
    _SECONDS,
)
PARKED = Metric(
    "yard.consumer.parked",
    Kind.GAUGE,
    "{event}",
    "Events that wait for people: those that failed and those behind them.",
    ("service", "topic"),
)
STOPPED = Metric(
    "yard.consumer.stopped", Kind.GAUGE, "{partition}", "Partitions that cannot go on without people.", ("service",)
)
PUBLISH_DURATION = Metric(
    "yard.relay.publish.duration", Kind.HISTOGRAM, "s", "One transaction of the relay.", ("service",), _SECONDS
)
RELAY_EVENTS = Metric(
    "yard.relay.events", Kind.COUNTER, "{event}", "Events that the relay published.", ("service", "topic")
)
BILLED_GPU_TIME = Metric(
    "yard.billing.gpu.time", Kind.COUNTER, "s", "Granted GPU time of ended allocations.", ("project", "model")
)
SERVICE_ACTIVE = Metric(
    "yard.service.active", Kind.GAUGE, "1", "1 where this instance does the service's work, else 0.", ("service",)
)
NODE_COUNT = Metric("yard.node.count", Kind.GAUGE, "{node}", "Nodes by liveness.", ("state",))

HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"

HTTP_SERVER_DURATION = Metric(
    "http.server.request.duration",
    Kind.HISTOGRAM,
    "s",
    "From a request's arrival to the first byte of its answer.",
    (HTTP_METHOD, HTTP_ROUTE, HTTP_STATUS),
    _REQUEST_SECONDS,
)

HW_GPU_UTILIZATION = Metric(
    "hw.gpu.utilization", Kind.GAUGE, "1", "Share of the last sampling period in which a kernel ran.", _DEVICE
)
HW_GPU_MEMORY_USAGE = Metric("hw.gpu.memory.usage", Kind.GAUGE, "By", "Memory of the device in use.", _DEVICE)
HW_POWER = Metric("hw.power", Kind.GAUGE, "W", "Power that the device draws.", (*_DEVICE, "hw.type"))
HW_TEMPERATURE = Metric("hw.temperature", Kind.GAUGE, "Cel", "Temperature of the device.", (*_DEVICE, "hw.type"))
HW_ERRORS = Metric(
    "hw.errors", Kind.COUNTER, "{error}", "Errors that the device reported.", (*_DEVICE, "hw.type", "error.type")
)

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        JOB_COUNT,
        ADMISSION_WAIT,
        CYCLE_DURATION,
        DECISIONS,
        GPU_ALLOCATION,
        GPU_FRAGMENTATION,
        OUTBOX_OLDEST_AGE,
        OUTBOX_SIZE,
        CONSUMER_LAG,
        BATCH_SIZE,
        HANDLER_DURATION,
        PARKED,
        STOPPED,
        PUBLISH_DURATION,
        RELAY_EVENTS,
        BILLED_GPU_TIME,
        SERVICE_ACTIVE,
        NODE_COUNT,
        HTTP_SERVER_DURATION,
        HW_GPU_UTILIZATION,
        HW_GPU_MEMORY_USAGE,
        HW_POWER,
        HW_TEMPERATURE,
        HW_ERRORS,
    )
}


def metric_named(name: str) -> Metric:
    """Raises NotInCatalogue."""
    try:
        return METRICS[name]
    except KeyError:
        raise NotInCatalogue(f"there is no metric {name!r}") from None


_PROMETHEUS_UNITS = {"s": "seconds", "By": "bytes", "W": "watts", "Cel": "celsius", "1": ""}


def prometheus_label(label: str) -> str:
    """What the label or attribute is called in PromQL."""
    return label.replace(".", "_")


def prometheus_name(metric: Metric) -> str:
    """What the metric is called in PromQL; of a histogram, what `_bucket`, `_sum` and `_count` are appended to.

    Dots become underscores, the unit is a suffix unless it is an annotation or a ratio, counters end in `_total`
    (OpenTelemetry, "Prometheus and OpenMetrics compatibility").
    """
    unit = "" if metric.unit.startswith("{") else _PROMETHEUS_UNITS[metric.unit]
    name = metric.name.replace(".", "_")
    if unit and not name.endswith(f"_{unit}"):
        name = f"{name}_{unit}"
    return f"{name}_total" if metric.kind is Kind.COUNTER else name


def prometheus_series(metric: Metric) -> tuple[str, ...]:
    """The names of all its time series."""
    name = prometheus_name(metric)
    if metric.kind is Kind.HISTOGRAM:
        return (f"{name}_bucket", f"{name}_sum", f"{name}_count")
    return (name,)


MESSAGING_SYSTEM = "messaging.system"
DESTINATION = "messaging.destination.name"
PARTITION = "messaging.destination.partition.id"
CONSUMER_GROUP = "messaging.consumer.group.name"
OFFSET = "messaging.kafka.offset"
MESSAGE_ID = "messaging.message.id"
CONVERSATION_ID = "messaging.message.conversation_id"
BATCH_COUNT = "messaging.batch.message_count"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
JOB_ID = "yard.job.id"
ATTEMPT = "yard.attempt"
NODE = "yard.node"
ALLOCATION_ID = "yard.allocation.id"
OUTCOME = "yard.outcome"
REASON = "yard.reason"
ERROR_TYPE = "error.type"
URL_PATH = "url.path"
SERVER = "server.address"

_OPERATION = (MESSAGING_SYSTEM, OPERATION_NAME, OPERATION_TYPE, DESTINATION)
_ABOUT_JOB = (JOB_ID, ATTEMPT, NODE, ALLOCATION_ID)


@dataclass(frozen=True, slots=True)
class SpanType:
    """`name` holds attributes in braces; `attributes` are all that its spans may have, not all that they must have."""

    name: str
    kind: str
    description: str
    attributes: tuple[str, ...]


SPANS: tuple[SpanType, ...] = (
    SpanType(
        f"send {{{DESTINATION}}}",
        "producer",
        "An event was made, in the transaction that commits it.",
        (*_OPERATION, MESSAGE_ID, CONVERSATION_ID, *_ABOUT_JOB),
    ),
    SpanType(
        f"poll {{{DESTINATION}}}",
        "client",
        "A batch was fetched.",
        (*_OPERATION, PARTITION, CONSUMER_GROUP, OFFSET, BATCH_COUNT),
    ),
    SpanType(
        f"process {{{DESTINATION}}}",
        "consumer",
        "A batch was handled: child of the sender's span when it was one event, else a trace of its own with links.",
        (*_OPERATION, PARTITION, CONSUMER_GROUP, OFFSET, BATCH_COUNT, MESSAGE_ID, CONVERSATION_ID, JOB_ID),
    ),
    SpanType(
        f"commit {{{DESTINATION}}}",
        "client",
        "Consumed offsets were told to the broker.",
        (*_OPERATION, PARTITION, CONSUMER_GROUP, OFFSET),
    ),
    SpanType(f"attempt {{{ATTEMPT}}}", "internal", "A later attempt of a job, linked to the earlier.", (*_ABOUT_JOB,)),
    SpanType("start task", "internal", "An agent starts a task; the task's process continues this.", _ABOUT_JOB),
    SpanType("run task", "internal", "A task ran, from when it was seen running.", (*_ABOUT_JOB, OUTCOME, REASON)),
    SpanType(
        f"{{{HTTP_METHOD}}} {{{HTTP_ROUTE}}}",
        "server",
        "A request, from its arrival to the first byte of its answer; without a route, the method alone.",
        (HTTP_METHOD, HTTP_ROUTE, HTTP_STATUS, URL_PATH, ERROR_TYPE, JOB_ID),
    ),
    SpanType(
        f"{{{HTTP_METHOD}}}",
        "client",
        "A question to the owning service.",
        (HTTP_METHOD, HTTP_STATUS, URL_PATH, SERVER, ERROR_TYPE),
    ),
)

_METHODS = "GET|HEAD|POST|PUT|DELETE|CONNECT|OPTIONS|TRACE|PATCH|QUERY|HTTP"
_PATTERNS = {
    DESTINATION: r"yard\.[a-z0-9._]+",
    ATTEMPT: r"\d+",
    HTTP_METHOD: f"(?:{_METHODS})",
    HTTP_ROUTE: r"/\S*",
}


def _matches(span: SpanType, name: str) -> bool:
    pattern = "".join(
        _PATTERNS[part[1:-1]] if part.startswith("{") else re.escape(part)
        for part in re.split(r"(\{[^}]+\})", span.name)
    )
    if span.kind == "server":
        pattern += f"|{_METHODS}"
    return re.fullmatch(pattern, name) is not None


def span_type(name: str, kind: str) -> SpanType:
    """The type of a recorded span. `kind`: server, client, producer, consumer, internal. Raises NotInCatalogue."""
    for span in SPANS:
        if span.kind == kind and _matches(span, name):
            return span
    raise NotInCatalogue(f"there is no {kind} span {name!r}")


def check_span(name: str, kind: str, attributes: Iterable[str]) -> SpanType:
    """The type of a recorded span, all of whose attributes it knows. Raises NotInCatalogue."""
    span = span_type(name, kind)
    unknown = sorted(set(attributes) - set(span.attributes))
    if unknown:
        raise NotInCatalogue(f"{kind} spans {span.name!r} have no {', '.join(unknown)}")
    return span
