"""A real Prometheus (Debian's package `prometheus`) that scrapes what a test serves."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from support.free_ports import free_ports

_START_LIMIT_SECONDS = 30.0
_SCRAPE_SECONDS = 0.25


class PrometheusUnavailable(RuntimeError):
    """There is no usable `prometheus`; the message says what happened."""


@dataclass(frozen=True)
class Sample:
    """One element of an instant vector; `labels` without the name, which `name` has, empty after an operation."""

    name: str
    labels: Mapping[str, str]
    value: float


class PrometheusServer:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def query(self, promql: str) -> list[Sample]:
        """An instant query's answer. Raises ValueError with Prometheus's own words for a query that it refuses."""
        answer = (await self._http.get("/api/v1/query", params={"query": promql})).json()
        if answer["status"] != "success":
            raise ValueError(f"{promql}: {answer['error']}")
        result = answer["data"]["result"]
        if answer["data"]["resultType"] == "scalar":
            return [Sample("", {}, float(result[1]))]
        return [_sample(item) for item in result]

    async def until(
        self, promql: str, enough: Callable[[list[Sample]], bool] = bool, timeout_seconds: float = 20.0
    ) -> list[Sample]:
        """Ask again and again, as a dashboard does, until the answer is enough. Raises TimeoutError with the last."""
        found: list[Sample] = []
        try:
            async with asyncio.timeout(timeout_seconds):
                while not enough(found := await self.query(promql)):
                    await asyncio.sleep(_SCRAPE_SECONDS)
        except TimeoutError:
            raise TimeoutError(f"{promql} answers {found}; targets: {await self.target_errors()}") from None
        return found

    async def target_errors(self) -> dict[str, str]:
        """Address → what the last scrape said; empty text when it went well."""
        answer = (await self._http.get("/api/v1/targets")).json()
        return {target["scrapeUrl"]: target["lastError"] for target in answer["data"]["activeTargets"]}

    async def metadata(self) -> dict[str, str]:
        """Metric → its type, as the targets declare it."""
        answer = (await self._http.get("/api/v1/metadata")).json()
        return {name: entries[0]["type"] for name, entries in answer["data"].items()}


def _sample(item: Mapping[str, object]) -> Sample:
    labels = dict(item["metric"])  # type: ignore[call-overload]
    return Sample(labels.pop("__name__", ""), labels, float(item["value"][1]))  # type: ignore[index]


@asynccontextmanager
async def prometheus_server(folder: Path, targets: Sequence[str], *, token: str) -> AsyncIterator[PrometheusServer]:
    """Scrapes `host:port` targets four times a second with the bearer token. It dies with this process.

    Call it where an event loop runs in the main thread: the kernel ends it when the thread that forked it ends.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise PrometheusUnavailable("no `prometheus` in PATH: apt-get install --no-install-recommends prometheus")
    [port] = free_ports(1)
    (folder / "token").write_text(token)
    configuration = folder / "prometheus.json"  # JSON is YAML
    configuration.write_text(json.dumps(_configuration(targets, folder / "token")))
    with (folder / "prometheus.log").open("ab") as log:
        process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", program),
                f"--config.file={configuration}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--log.level=warn",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as http:
            await _until_ready(http, process, folder / "prometheus.log")
            yield PrometheusServer(http)
    finally:
        process.kill()
        process.wait()


def _configuration(targets: Sequence[str], token_file: Path) -> dict[str, object]:
    return {
        "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "250ms"},
        "scrape_configs": [
            {
                "job_name": "gpuyard",
                "authorization": {"credentials_file": str(token_file)},
                "static_configs": [{"targets": list(targets)}],
            }
        ],
    }


async def _until_ready(http: httpx.AsyncClient, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """It has no event to await but its own answer."""
    try:
        async with asyncio.timeout(_START_LIMIT_SECONDS):
            while process.poll() is None:
                try:
                    if (await http.get("/-/ready")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)
    except TimeoutError:
        pass
    raise PrometheusUnavailable(f"prometheus did not start:\n{log.read_text()[-2000:]}")
