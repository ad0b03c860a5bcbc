"""The services by name: how each is built from the environment. Imports only what a process runs."""

from collections.abc import Awaitable, Callable

from yard_domain.errors import InvalidField
from yard_runtime.service import Runtime, Service

Build = Callable[[Runtime], Awaitable[Service]]


async def _gateway(runtime: Runtime) -> Service:
    from yard_gateway.app import build
    from yard_gateway.settings import GatewaySettings

    return await build(GatewaySettings(), runtime)


async def _inventory(runtime: Runtime) -> Service:
    from yard_inventory.app import build
    from yard_inventory.settings import InventorySettings

    return await build(InventorySettings(), runtime)


async def _admission(runtime: Runtime) -> Service:
    from yard_admission.app import build
    from yard_admission.settings import AdmissionSettings

    return await build(AdmissionSettings(), runtime)


async def _placement(runtime: Runtime) -> Service:
    from yard_placement.app import build
    from yard_placement.settings import PlacementSettings

    return await build(PlacementSettings(), runtime)


async def _billing(runtime: Runtime) -> Service:
    from yard_billing.app import build
    from yard_billing.settings import BillingSettings

    return await build(BillingSettings(), runtime)


async def _agent(runtime: Runtime) -> Service:
    from yard_agent.app import build
    from yard_agent.settings import AgentSettings

    return await build(AgentSettings(), runtime)  # type: ignore[call-arg]  # read from the environment


async def _audit(runtime: Runtime) -> Service:
    from yard_allinone.audit.service import AuditService

    return AuditService(runtime)


async def _retention(runtime: Runtime) -> Service:
    from yard_runtime.retention import RetentionService

    return RetentionService(runtime)


TARGETS: dict[str, Build] = {
    "gateway": _gateway,
    "inventory": _inventory,
    "admission": _admission,
    "placement": _placement,
    "billing": _billing,
    "agent": _agent,
    "audit": _audit,
    "retention": _retention,
}


def parse_targets(text: str) -> list[str]:
    """The names of a `--target` list. Raises InvalidField that lists the known ones."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in TARGETS]
    if unknown or not names:
        raise InvalidField("target", f"unknown: {', '.join(unknown) or '(none)'}; there are {', '.join(TARGETS)}")
    return list(dict.fromkeys(names))
