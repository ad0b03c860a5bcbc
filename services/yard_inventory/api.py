"""Inventory's internal HTTP: nodes and their cordon. The gateway authorises; placement adds who uses what."""

from dataclasses import replace
from typing import Any

from fastapi import FastAPI

from yard_domain.names import is_name
from yard_inventory import repository
from yard_inventory.fleet import Node
from yard_inventory.settings import InventorySettings
from yard_runtime.http import Problem
from yard_store.unit_of_work import Store


def build_api(store: Store, settings: InventorySettings, instance: str) -> FastAPI:
    """`instance` is this process's name as the owner of the cluster's scope."""
    app = FastAPI(title="gpuyard inventory", openapi_url=None, docs_url=None, redoc_url=None)

    @app.get("/nodes")
    async def list_nodes() -> dict[str, Any]:
        async with store.reading() as connection:
            found = await repository.with_devices(connection, await repository.nodes(connection))
        return {"items": [node_document(node) for node in found.values()]}

    @app.get("/nodes/{name}")
    async def get_node(name: str) -> dict[str, Any]:
        if not is_name(name):
            raise _unknown(name)
        async with store.reading() as connection:
            found = await repository.with_devices(connection, await repository.nodes(connection, [name]))
        if name not in found:
            raise _unknown(name)
        return node_document(found[name])

    async def set_cordon(name: str, cordoned: bool) -> dict[str, Any]:
        if not is_name(name):
            raise _unknown(name)
        async with store.unit_of_work() as uow:
            await uow.hold(settings.cluster, instance)
            found = await repository.with_devices(uow.connection, await repository.nodes(uow.connection, [name]))
            if name not in found:
                raise _unknown(name)
            node = replace(found[name], cordoned=cordoned)
            if node != found[name]:
                await repository.save_cordon(uow.connection, name, cordoned)
                uow.emit(node.to_event(uow.now))
        return node_document(node)

    @app.post("/nodes/{name}/cordon")
    async def cordon(name: str) -> dict[str, Any]:
        return await set_cordon(name, True)

    @app.post("/nodes/{name}/uncordon")
    async def uncordon(name: str) -> dict[str, Any]:
        return await set_cordon(name, False)

    return app


def node_document(node: Node) -> dict[str, Any]:
    """The node as the API shows it, less what placement knows."""
    return {
        "name": node.name,
        "cluster": node.cluster,
        "pool": node.pool,
        "state": node.state.value,
        "cordoned": node.cordoned,
        "generation": node.generation,
        "boot_id": node.boot_id,
        "cpus": node.cpus,
        "memory_bytes": node.memory_bytes,
        "labels": node.labels,
        "simulated": node.simulated,
        "last_contact": node.last_contact,
        "devices": [device.model_dump() for device in node.devices],
    }


def _unknown(name: str) -> Problem:
    return Problem(404, "Not found", f"There is no node {name!r}.")
