"""What placement's gauges show, read in one statement over the devices of a pool."""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_obs.catalogue import GPU_ALLOCATION, GPU_FRAGMENTATION
from yard_obs.metrics import Metrics
from yard_runtime.gauges import TableGauges
from yard_store.unit_of_work import Store

# `dirty`: its task has ended and its node has not seen it empty yet.
_DEVICES = sa.text(
    "SELECT d.node, d.model, CASE WHEN d.allocation_id IS NULL AND d.healthy THEN 'free' "
    "  WHEN d.allocation_id IS NULL THEN 'unhealthy' WHEN a.outcome IS NOT NULL THEN 'dirty' ELSE 'allocated' END, "
    "  n.state = 'ready' AND NOT n.cordoned AND n.epoch IS NOT NULL, count(*) "
    "FROM placement.nodes n JOIN placement.devices d ON d.node = n.name AND d.present "
    "LEFT JOIN placement.allocations a ON a.allocation_id = d.allocation_id "
    "WHERE n.pool_key = :pool GROUP BY 1, 2, 3, 4"
)


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """`devices`: (model, state) → how many; states are free, allocated, dirty and unhealthy.

    `fragmentation`: the share of the free devices that stand on a node of which others are held, from 0 to 1; 0 when
    nothing is free. Only nodes that take work count. It knows nothing of how large the waiting gangs are.
    """

    devices: dict[tuple[str, str], int]
    fragmentation: float


async def pool_figures(connection: AsyncConnection, pool_key: str) -> PoolFigures:
    devices: dict[tuple[str, str], int] = {}
    free: dict[str, int] = {}
    in_use: set[str] = set()
    for node, model, state, takes_work, count in await connection.execute(_DEVICES, {"pool": pool_key}):
        devices[model, state] = devices.get((model, state), 0) + count
        if state in ("allocated", "dirty"):
            in_use.add(node)
        elif state == "free" and takes_work:
            free[node] = free.get(node, 0) + count
    scattered = sum(count for node, count in free.items() if node in in_use)
    return PoolFigures(devices, scattered / sum(free.values()) if free else 0.0)


def gauges(store: Store, metrics: Metrics, pool_key: str) -> TableGauges:
    allocation, fragmentation = metrics.gauge(GPU_ALLOCATION), metrics.gauge(GPU_FRAGMENTATION)

    async def show(connection: AsyncConnection) -> None:
        figures = await pool_figures(connection, pool_key)
        found = figures.devices.items()
        allocation.replace(((count, {"model": model, "state": s}) for (model, s), count in found), pool=pool_key)
        fragmentation.set(figures.fragmentation, pool=pool_key)

    def forget() -> None:
        allocation.replace((), pool=pool_key)
        fragmentation.remove(pool=pool_key)

    return TableGauges(store, show, forget)
