"""Admission's internal HTTP: queues and projects. The gateway authorises; here is what they are."""

from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from yard_admission import repository
from yard_admission.outbox import SCOPE, Outbox
from yard_admission.settings import MAX_GPU_QUOTA, AdmissionSettings
from yard_domain.errors import InvalidField
from yard_domain.names import NAME_RULE, is_name
from yard_events.types import QueueState
from yard_store.unit_of_work import Store, UnitOfWork


class QueueBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    gpu_quota: Annotated[int, Field(strict=True, ge=0, le=MAX_GPU_QUOTA)]


class ProjectBody(BaseModel):
    model_config = ConfigDict(extra="forbid")


def build_api(store: Store, settings: AdmissionSettings, instance: str) -> FastAPI:
    """`instance` is this process's name as the owner of the root's scope."""
    app = FastAPI(title="gpuyard admission", openapi_url=None, docs_url=None, redoc_url=None)

    @app.get("/queues")
    async def list_queues() -> dict[str, Any]:
        async with store.reading() as connection:
            return {"items": await repository.queue_standing(connection)}

    @app.put("/queues/{name}")
    async def put_queue(name: str, body: QueueBody) -> dict[str, Any]:
        """Make the queue, or change its quota. Claims above a lowered quota stay until their jobs end."""
        _check_name(name)
        async with store.unit_of_work() as uow:
            await uow.hold(SCOPE, instance)
            await define_queue(uow, name, body.gpu_quota, settings)
            return (await repository.queue_standing(uow.connection, name))[0]

    @app.get("/projects")
    async def list_projects() -> dict[str, Any]:
        async with store.reading() as connection:
            return {"items": [{"name": name} for name in await repository.project_names(connection)]}

    @app.put("/projects/{name}")
    async def put_project(name: str, body: ProjectBody | None = None) -> dict[str, Any]:
        _check_name(name)
        async with store.unit_of_work() as uow:
            await uow.hold(SCOPE, instance)
            await repository.put_project(uow.connection, name)
        return {"name": name}

    return app


async def define_queue(uow: UnitOfWork, name: str, gpu_quota: int, settings: AdmissionSettings) -> None:
    """The queue has this quota from now on; says so to the world when that is new."""
    if not await repository.create_queue(uow.connection, name, gpu_quota):
        if not await repository.resize_queue(uow.connection, name, gpu_quota):
            return
        out = Outbox(settings, uow.now)
        out.plan_notice()
        out.flush(uow)
    uow.emit(QueueState(queue=name, gpu_quota=gpu_quota, at=uow.now))
    uow.mark_dirty(SCOPE)


def _check_name(name: str) -> None:
    if not is_name(name):
        raise InvalidField("name", f"must be {NAME_RULE}")
