"""`yard nodes`, `cordon`, `uncordon`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import typer

from yard_client.cli import session
from yard_client.cli.arguments import NodeArgument
from yard_client.cli.output import (
    ItemFormat,
    ItemOutput,
    ListFormat,
    ListOutput,
    age,
    moment,
    notice,
    printable,
    table_text,
    write_json,
    write_table,
    write_text,
)
from yard_client.errors import Refused
from yard_domain.quantities import format_bytes

if TYPE_CHECKING:
    from yard_client.client import YardClient
    from yard_client.models import Device, Node


def register(app: typer.Typer) -> None:
    nodes_app = typer.Typer(invoke_without_command=True)
    nodes_app.callback()(nodes)
    nodes_app.command("describe")(describe)
    app.add_typer(nodes_app, name="nodes")
    app.command("cordon")(cordon)
    app.command("uncordon")(uncordon)


def nodes(context: typer.Context, output: ListOutput = ListFormat.TABLE) -> None:
    """List nodes with their devices, or describe one.

    \b
    Examples:
      yard nodes
      yard nodes -o wide
      yard nodes describe node-3
    """
    if context.invoked_subcommand is not None:
        return
    with session.connect() as client:
        found = client.nodes()
    match output:
        case ListFormat.JSON:
            write_json({"items": found})
        case ListFormat.NAME:
            for node in found:
                write_text(node["name"])
        case _ if found:
            _write_nodes(found, wide=output == ListFormat.WIDE)
        case _:
            notice("no node has registered yet")


def describe(node: NodeArgument, output: ItemOutput = ItemFormat.TABLE) -> None:
    """Show one node and each of its devices.

    \b
    Example:
      yard nodes describe node-3
    """
    with session.connect() as client:
        found = _node(client, node)
    if output == ItemFormat.JSON:
        write_json(found)
        return
    facts = [
        ("Node", f"{found['name']}{' (simulated)' if found['simulated'] else ''}"),
        ("State", _state(found)),
        ("Pool", f"{found['cluster']}/{found['pool']}"),
        ("CPUs", f"{found['cpus_used']:g} of {found['cpus']:g} in use"),
        ("Memory", f"{format_bytes(found['memory_used_bytes'])} of {format_bytes(found['memory_bytes'])} in use"),
        ("Generation", f"{found['generation']}, boot id {found['boot_id']}"),
        ("Contact", moment(found["last_contact"])),
        ("Labels", " ".join(f"{key}={value}" for key, value in found["labels"].items())),
    ]
    lines = [f"{key + ':':<12}{printable(value)}" for key, value in facts if value]
    rows = [
        [d["index"], d["model"], format_bytes(d["memory_bytes"]), _device_state(d), d["job_id"], d["uuid"], d["detail"]]
        for d in found["devices"]
    ]
    table = table_text(["DEVICE", "MODEL", "MEMORY", "STATE", "JOB", "UUID", "DETAIL"], rows, indent=2)
    write_text("\n".join([*lines, "Devices:", table]))


def cordon(node: NodeArgument, output: ItemOutput = ItemFormat.TABLE) -> None:
    """Place nothing new on a node; what runs there goes on.

    \b
    Example:
      yard cordon node-3
    """
    with session.connect() as client:
        _say(client.cordon(node), node, "is cordoned", output)


def uncordon(node: NodeArgument, output: ItemOutput = ItemFormat.TABLE) -> None:
    """Place work on a node again.

    \b
    Example:
      yard uncordon node-3
    """
    with session.connect() as client:
        _say(client.uncordon(node), node, "takes work again", output)


def _say(answer: Node, node: str, what: str, output: ItemFormat) -> None:
    if output == ItemFormat.JSON:
        write_json(answer)
    else:
        write_text(f"{node} {what}")


def _node(client: YardClient, name: str) -> Node:
    found = client.nodes()
    for node in found:
        if node["name"] == name:
            return node
    known = ", ".join(node["name"] for node in found[:10]) or "none"
    raise Refused(404, "Not found", f"no node is named {name!r}; known: {known}", {})


def _write_nodes(found: list[Node], *, wide: bool) -> None:
    columns = ["NAME", "POOL", "STATE", "GPUS", "MODELS", "CPUS", "MEMORY", "CONTACT"]
    if wide:
        columns += ["CLUSTER", "GENERATION", "SIMULATED", "LABELS"]
    now = session.now()
    rows: list[list[object]] = []
    for node in found:
        used = sum(1 for device in node["devices"] if device["allocation_id"])
        row: list[object] = [
            node["name"], node["pool"], _state(node), f"{used}/{len(node['devices'])}", _models(node),
            f"{node['cpus_used']:g}/{node['cpus']:g}",
            f"{format_bytes(node['memory_used_bytes'])}/{format_bytes(node['memory_bytes'])}",
            f"{age(node['last_contact'], now)} ago" if node["last_contact"] else "never",
        ]  # fmt: skip
        if wide:
            labels = " ".join(f"{key}={value}" for key, value in node["labels"].items())
            row += [node["cluster"], node["generation"], "yes" if node["simulated"] else "no", labels]
        rows.append(row)
    write_table(columns, rows)


def _state(node: Node) -> str:
    return f"{node['state']}, cordoned" if node["cordoned"] else node["state"]


def _models(node: Node) -> str:
    counts = Counter(device["model"] for device in node["devices"])
    return ", ".join(f"{count}×{model}" for model, count in counts.items())


def _device_state(device: Device) -> str:
    if not device["healthy"]:
        return "unhealthy"
    if device["dirty"]:
        return "dirty"
    return "allocated" if device["allocation_id"] else "free"
