"""What inventory's gauges show."""

from functools import partial

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_obs.catalogue import NODE_COUNT
from yard_obs.metrics import Gauge, Metrics
from yard_runtime.gauges import TableGauges
from yard_store.unit_of_work import Store

_NODES = sa.text("SELECT state, count(*) AS nodes FROM inventory.nodes WHERE cluster = :cluster GROUP BY state")


async def nodes_by_state(connection: AsyncConnection, cluster: str) -> dict[str, int]:
    """State → number of nodes of the cluster, cordoned ones too."""
    found = await connection.execute(_NODES, {"cluster": cluster})
    return {row.state: row.nodes for row in found}


def gauges(store: Store, metrics: Metrics, cluster: str) -> TableGauges:
    nodes = metrics.gauge(NODE_COUNT)
    return TableGauges(store, partial(_show, nodes, cluster), lambda: nodes.replace(()))


async def _show(nodes: Gauge, cluster: str, connection: AsyncConnection) -> None:
    found = await nodes_by_state(connection, cluster)
    nodes.replace((count, {"state": state}) for state, count in found.items())
