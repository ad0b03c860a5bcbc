"""Placement's internal HTTP: who holds what, as the ledger has it."""

from typing import Any

import sqlalchemy as sa
from fastapi import FastAPI

from yard_store.unit_of_work import Store

_NODES = sa.text(
    "SELECT n.name AS node, coalesce(u.cpus, 0) AS cpus_used, coalesce(u.memory, 0)::bigint AS memory_used_bytes "
    "FROM placement.nodes n LEFT JOIN (SELECT node, sum(cpus) AS cpus, sum(memory_bytes) AS memory "
    "  FROM placement.allocations WHERE released_at IS NULL GROUP BY node) u ON u.node = n.name ORDER BY n.name"
)
_DEVICES = sa.text(
    "SELECT d.node, d.uuid, d.allocation_id, a.job_id, a.project_id AS project, "
    "  (a.outcome IS NOT NULL AND NOT a.emptied) AS dirty "
    "FROM placement.devices d LEFT JOIN placement.allocations a USING (allocation_id) "
    "WHERE d.present ORDER BY d.node, d.idx"
)


def build_api(store: Store) -> FastAPI:
    app = FastAPI(title="placement", openapi_url=None)

    @app.get("/nodes")
    async def nodes() -> dict[str, Any]:
        """Per node the CPU and memory booked, per device its holder; `dirty`: its task ended, but it is not empty."""
        async with store.reading() as connection:
            found = [dict(row) for row in (await connection.execute(_NODES)).mappings()]
            devices = [dict(row) for row in (await connection.execute(_DEVICES)).mappings()]
        by_node: dict[str, list[dict[str, Any]]] = {}
        for device in devices:
            device["dirty"] = bool(device["dirty"])
            by_node.setdefault(device.pop("node"), []).append(device)
        return {"items": [node | {"devices": by_node.get(node["node"], [])} for node in found]}

    return app
