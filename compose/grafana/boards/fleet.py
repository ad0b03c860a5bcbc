"""Nodes, devices, and the GPU time that was billed."""

from boards.panels import GPU, Board, Section, Variable, graph, number
from boards.promql import gauge, legend, rate
from yard_obs.catalogue import BILLED_GPU_TIME, GPU_ALLOCATION, GPU_FRAGMENTATION, NODE_COUNT

_DEVICE_COLORS = {"free": "green", "allocated": "blue", "dirty": "orange", "unhealthy": "red"}
_NODE_COLORS = {"ready": "green", "suspect": "orange", "lost": "red"}
_HOURS = "suffix: GPU h"


def _devices(state: str) -> str:
    return gauge(GPU_ALLOCATION, pool="$pool", state=state)


def _now() -> Section:
    every = gauge(GPU_ALLOCATION, pool="$pool")
    return Section(
        "Now",
        [
            number("Nodes ready", "Nodes whose agent was heard of in time.", gauge(NODE_COUNT, state="ready")),
            number(
                "Nodes lost",
                "Nodes that were silent for too long: what ran there has ended as lost, or is placed anew.",
                gauge(NODE_COUNT, state="lost"),
                limits={1: "red"},
            ),
            number(
                "GPUs allocated",
                "Share of the pool's devices that run something.",
                f"{_devices('allocated')} / {every}",
                unit="percentunit",
            ),
            number("GPUs free", "Devices that the next job can have.", _devices("free"), unit=GPU),
            number(
                "GPUs dirty",
                "Devices whose task has ended and whose node has not seen them empty yet: normally for seconds.",
                _devices("dirty"),
                unit=GPU,
                limits={8: "orange"},
            ),
            number(
                "GPUs unhealthy",
                "Devices that report errors: nothing is placed on them.",
                _devices("unhealthy"),
                unit=GPU,
                limits={1: "red"},
            ),
        ],
    )


def _nodes_and_devices() -> Section:
    def by_pool(state: str) -> list[tuple[str, str]]:
        return [(gauge(GPU_ALLOCATION, "pool", "model", pool="$pool", state=state), legend("pool", "model"))]

    return Section(
        "Nodes and devices",
        [
            graph(
                "Nodes by state",
                "ready: heard of in time. suspect: overdue, nothing new is placed there. lost: given up.",
                [(gauge(NODE_COUNT, "state"), legend("state"))],
                stacked=True,
                colors=_NODE_COLORS,
            ),
            graph(
                "GPUs by state",
                "What placement's ledger says of the devices.",
                [(gauge(GPU_ALLOCATION, "state", pool="$pool"), legend("state"))],
                unit=GPU,
                stacked=True,
                colors=_DEVICE_COLORS,
            ),
            graph("GPUs free by pool and model", "Where the next job can start.", by_pool("free"), unit=GPU),
            graph("GPUs allocated by pool and model", "What runs where.", by_pool("allocated"), unit=GPU),
            graph(
                "GPUs out of use by pool, model and state",
                "dirty: not seen empty since its task ended. unhealthy: reports errors.",
                [
                    (
                        gauge(GPU_ALLOCATION, "pool", "model", "state", pool="$pool", state="~dirty|unhealthy"),
                        legend("pool", "model", "state"),
                    )
                ],
                unit=GPU,
            ),
            graph(
                "Fragmentation by pool",
                "Share of the free devices on nodes that also run something: free, but of little use to a job that "
                "needs whole nodes.",
                [(gauge(GPU_FRAGMENTATION, "pool", pool="$pool"), legend("pool"))],
                unit="percentunit",
                at_most=1,
            ),
        ],
    )


def _billing() -> Section:
    def hourly(label: str) -> list[tuple[str, str]]:
        return [(f"{rate(BILLED_GPU_TIME, label, window='1h')}", legend(label))]

    note = "Granted GPU time is billed when an allocation ends: a long job shows after its end. Mean of the last hour."
    return Section(
        "Billing",
        [
            graph("GPU time billed per hour, by project", note, hourly("project"), unit=_HOURS, stacked=True),
            graph("GPU time billed per hour, by model", note, hourly("model"), unit=_HOURS, stacked=True),
        ],
    )


FLEET = Board(
    uid="gpuyard-fleet",
    title="gpuyard: fleet",
    description="Nodes by state, devices by pool and model, fragmentation, billed GPU time.",
    traces='{ name = "start task" || name = "run task" }',
    variables=[Variable("pool", "Pool", GPU_ALLOCATION, "pool")],
    sections=[_now(), _nodes_and_devices(), _billing()],
)
