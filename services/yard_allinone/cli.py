"""The commands that run gpuyard itself: `yard up`, `yard down`, `yard serve`, `yard bench`. Cheap to import."""

from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", "-d", help="Where everything is kept. Default: gpuyard in the user's data folder."),
]

BenchBus = Annotated[str, typer.Option("--bus", help="postgres (embedded) or kafka.")]
BenchKafka = Annotated[
    str | None, typer.Option("--kafka", envvar="YARD_KAFKA", help="With --bus kafka: brokers, as host:port.")
]


def register(app: typer.Typer) -> None:
    """The `gpuyard.cli` entry point."""
    app.command(rich_help_panel="Run gpuyard")(up)
    app.command(rich_help_panel="Run gpuyard")(down)
    app.command(rich_help_panel="Run gpuyard")(serve)
    app.command(rich_help_panel="Run gpuyard")(agent)
    topics = typer.Typer(no_args_is_help=True, help="The topics on Kafka, which YARD_KAFKA names.")
    topics.command()(plan)
    topics.command()(apply)
    app.add_typer(topics, name="topics", rich_help_panel="Run gpuyard")
    bench = typer.Typer(no_args_is_help=True, help="Benchmarks, on installations of their own.")
    bench.command()(pipeline)
    bench.command()(bus)
    app.add_typer(bench, name="bench", rich_help_panel="Run gpuyard")


def up(
    data_dir: DataDir = None,
    http: Annotated[str, typer.Option(help="Where the API listens, as HOST:PORT.")] = "127.0.0.1:8080",
    nodes: Annotated[int, typer.Option(min=0, max=64, help="How many nodes to simulate; 0: this machine's GPUs.")] = 4,
    devices: Annotated[str, typer.Option(help="The devices of each simulated node.")] = "8xH100-80GB",
    kafka: Annotated[
        str | None, typer.Option(help="Brokers as HOST:PORT: every service is a process of its own, over Kafka.")
    ] = None,
    instances: Annotated[int, typer.Option(min=1, max=8, help="With --kafka: so many of each service.")] = 1,
) -> None:
    """Run all of gpuyard on this machine until Ctrl-C: PostgreSQL, the services, nodes, the API.

    A second `yard up` on the same data folder goes on where the first ended, however that was.

    Examples:

      yard up

      yard up --data-dir /srv/gpuyard --http 0.0.0.0:9000 --nodes 0

      yard up --kafka 127.0.0.1:9092 --instances 2
    """
    from yard_allinone.up import UpOptions, main

    raise typer.Exit(main(UpOptions(data_dir, http, nodes, devices, kafka=kafka, instances=instances)))


def down(
    data_dir: DataDir = None,
    grace_seconds: Annotated[float, typer.Option(min=0, help="Between SIGTERM and SIGKILL for running tasks.")] = 10.0,
) -> None:
    """Stop everything that `yard up` started on this machine, running tasks included.

    Example:

      yard down
    """
    from yard_allinone.down import main

    raise typer.Exit(main(data_dir, grace_seconds))


def serve(
    target: Annotated[str, typer.Option("--target", "-t", help="Services of this process, separated by commas.")],
) -> None:
    """Run some services in this process, configured by the environment (YARD_DATABASE_URL, YARD_KAFKA, YARD_LISTEN, …).

    Without YARD_KAFKA the log is in the database. Several instances of a service may run at once: one is active, the
    others stand by and answer HTTP.

    Examples:

      YARD_DATABASE_URL=postgresql://… YARD_LISTEN=127.0.0.1:7001 YARD_INTERNAL_TOKEN=… yard serve -t placement

      YARD_KAFKA=broker:9092 YARD_DATABASE_URL=… YARD_LISTEN=… YARD_INTERNAL_TOKEN=… yard serve -t admission,billing
    """
    from yard_allinone.process import main

    raise typer.Exit(main(target))


def agent() -> None:
    """Run the agent of this node (or, for demonstrations, of several simulated ones), configured by the environment.

    With YARD_KAFKA it needs no database.

    Example:

      YARD_KAFKA=broker:9092 YARD_INTERNAL_TOKEN=… YARD_LISTEN=127.0.0.1:7009 YARD_AGENT__DATA_DIR=/var/lib/gpuyard \
      YARD_AGENT__NODES='[{"name": "n1", "devices": "nvml"}]' YARD_AGENT__LISTEN=0.0.0.0:7010 \
      YARD_AGENT__ADVERTISE_URL=http://n1:7010 yard agent
    """
    from yard_allinone.process import main

    raise typer.Exit(main("agent"))


TopicsOutput = Annotated[str, typer.Option("--output", "-o", help="table or json.")]


def plan(output: TopicsOutput = "table") -> None:
    """Show which topics are missing or differ from their policy. Exit code 1 when there are any.

    Example:

      YARD_KAFKA=broker:9092 yard topics plan
    """
    from yard_allinone.topics import plan

    raise typer.Exit(plan(output))


def apply(output: TopicsOutput = "table") -> None:
    """Make missing topics and alter those that differ; partition counts stay as they are.

    Example:

      YARD_KAFKA=broker:9092 YARD_KAFKA_REPLICATION=3 yard topics apply
    """
    from yard_allinone.topics import apply

    raise typer.Exit(apply(output))


def pipeline(
    jobs: Annotated[int, typer.Option(min=1, max=1_000_000, help="Jobs of the throughput part.")] = 3000,
    idle_jobs: Annotated[int, typer.Option(min=1, max=10_000, help="Jobs sent one at a time.")] = 100,
    concurrency: Annotated[int, typer.Option(min=1, max=1024, help="Submissions under way at once.")] = 64,
    output: Annotated[str, typer.Option("--output", "-o", help="table or json.")] = "table",
    profile: Annotated[
        Path | None, typer.Option(help="Write a cProfile of every service process into this folder.")
    ] = None,
    bus: BenchBus = "postgres",
    kafka: BenchKafka = None,
) -> None:
    """From submission to the end of jobs through all services, with simulated tasks, on this machine.

    On Kafka every service is a process of its own, on topics of the benchmark's own.

    Examples:

      yard bench pipeline --jobs 3000 -o json

      yard bench pipeline --bus kafka --kafka 127.0.0.1:9092
    """
    from yard_allinone.bench_pipeline import PipelineOptions, main

    brokers = _brokers(bus, kafka)
    raise typer.Exit(main(PipelineOptions(jobs, idle_jobs, concurrency, output, profile, brokers)))


def _brokers(bus: str, kafka: str | None) -> str | None:
    """None for the embedded bus. Exits with 2 when the options do not fit together."""
    if bus not in ("postgres", "kafka"):
        raise typer.BadParameter("is postgres or kafka", param_hint="--bus")
    if bus == "kafka" and not kafka:
        raise typer.BadParameter("or YARD_KAFKA names the brokers, as host:port", param_hint="--kafka")
    return kafka if bus == "kafka" else None


def bus(
    bus: BenchBus = "postgres",
    kafka: BenchKafka = None,
    events: Annotated[int, typer.Option(min=1, max=10_000_000, help="Events to send.")] = 50_000,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Events per unit of work of the sender.")] = 100,
    output: Annotated[str, typer.Option("--output", "-o", help="table or json.")] = "table",
    profile: Annotated[Path | None, typer.Option(help="Write a cProfile of the process into this folder.")] = None,
) -> None:
    """Events per second through outbox, relay, consumer and transaction.

    Example:

      yard bench bus --bus kafka --kafka 127.0.0.1:9092 -o json
    """
    from yard_allinone.bench_bus import BusOptions, main

    raise typer.Exit(main(BusOptions(events, batch, output, _brokers(bus, kafka), profile)))
