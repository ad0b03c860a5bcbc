"""The supervisor with real child processes: restarts, readiness, the order of the end, and what a kill -9 leaves."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from yard_runtime.process_identity import process_identity
from yard_runtime.stragglers import end_stragglers
from yard_runtime.supervised_process import ProcessSpec
from yard_runtime.supervisor import Backoff, NotReady, Supervisor, WatchSpec
from yard_runtime.supervisor_events import SupervisorEvent, SupervisorEventKind

KIND = SupervisorEventKind
FAST = Backoff(first_seconds=0.01, limit_seconds=0.08, healthy_seconds=30)

# Each script makes its file once its signal handlers are in place, so that tests need not guess when that is.
WAITS = "import pathlib, signal, sys; pathlib.Path(sys.argv[1]).touch(); signal.pause()"
IGNORES_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS
ENDS_WELL = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + WAITS
WITH_CHILD = (
    "import pathlib, subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
    "pathlib.Path(sys.argv[1] + '.child').write_text(str(child.pid))\n" + WAITS
)


class Events:
    """Collects events and lets a test wait for one."""

    def __init__(self) -> None:
        self.seen: list[SupervisorEvent] = []
        self._new = asyncio.Event()

    def __call__(self, event: SupervisorEvent) -> None:
        self.seen.append(event)
        self._new.set()

    def of(self, kind: SupervisorEventKind, name: str | None = None) -> list[SupervisorEvent]:
        return [event for event in self.seen if event.kind == kind and name in (None, event.name)]

    async def wait(self, kind: SupervisorEventKind, name: str | None = None, count: int = 1) -> SupervisorEvent:
        async with asyncio.timeout(15):
            while len(found := self.of(kind, name)) < count:
                self._new.clear()
                await self._new.wait()
        return found[count - 1]


class Bench:
    """Builds specs in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.events = Events()

    def spec(self, name: str, script: str, *, grace: float = 10, ready: object = "file") -> ProcessSpec:
        file = self.folder / f"{name}.up"

        async def file_exists() -> bool:
            return file.exists()

        probe: Callable[[], Awaitable[bool]] | None = file_exists if ready == "file" else ready  # type: ignore[assignment]
        return ProcessSpec(
            name=name,
            argv=(sys.executable, "-c", script, str(file)),
            env=dict(os.environ),
            log_path=self.folder / "log" / f"{name}.log",
            ready=probe,
            stop_grace_seconds=grace,
        )

    def supervisor(
        self, *specs: ProcessSpec, watches: tuple[WatchSpec, ...] = (), backoff: Backoff = FAST
    ) -> Supervisor:
        return Supervisor(specs, self.events, run_dir=self.run_dir, watches=watches, backoff=backoff)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@contextlib.asynccontextmanager
async def running(supervisor: Supervisor) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        try:
            yield
        finally:
            await supervisor.stop()


async def until(condition: Callable[[], bool], what: str) -> None:
    """For what has no event: the state of a process that is not ours."""
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.01)
    assert condition(), what


def is_gone(pid: int) -> bool:
    return process_identity(pid) is None


async def test_a_killed_process_is_restarted_and_the_event_names_the_signal_and_its_last_words(bench: Bench) -> None:
    script = "print('about to work', flush=True)\n" + WAITS
    supervisor = bench.supervisor(bench.spec("engine", script))
    async with running(supervisor):
        await supervisor.wait_ready(15)
        first = bench.events.of(KIND.STARTED)[0].pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        died = await bench.events.wait(KIND.DIED)
        assert (died.name, died.pid, died.signal_name, died.exit_code) == ("engine", first, "SIGKILL", None)
        assert died.log_lines == ("about to work",)
        assert died.restart_in_seconds == FAST.first_seconds
        assert "engine died: SIGKILL" in died.sentence
        await bench.events.wait(KIND.READY, count=2)
        assert bench.events.of(KIND.STARTED)[1].pid != first


@pytest.mark.parametrize(
    ("script", "exit_code", "last_line"),
    [
        ("import sys; print('no database', file=sys.stderr); sys.exit(3)", 3, "no database"),
        ("print('done')", 0, "done"),
        ("raise ValueError('broken settings')", 1, "ValueError: broken settings"),
    ],
)
async def test_the_event_names_the_exit_code(bench: Bench, script: str, exit_code: int, last_line: str) -> None:
    async with running(bench.supervisor(bench.spec("control", script))):
        died = await bench.events.wait(KIND.DIED)
    assert (died.exit_code, died.signal_name) == (exit_code, None)
    assert died.log_lines[-1] == last_line


async def test_a_command_that_does_not_exist_says_so_and_is_tried_again(bench: Bench) -> None:
    spec = ProcessSpec("ghost", ("/nonexistent/program",), {}, bench.folder / "ghost.log")
    async with running(bench.supervisor(spec)):
        died = await bench.events.wait(KIND.DIED, count=2)
    assert died.exit_code == 127
    assert died.log_lines == ("cannot run /nonexistent/program: No such file or directory",)


async def test_a_log_that_cannot_be_written_does_not_stop_the_others(bench: Bench) -> None:
    (bench.folder / "file").touch()
    mute = ProcessSpec("mute", (sys.executable, "-c", WAITS), {}, bench.folder / "file" / "mute.log")
    async with running(bench.supervisor(mute, bench.spec("engine", WAITS))):
        failed = await bench.events.wait(KIND.NOT_STARTED, "mute", count=2)
        await bench.events.wait(KIND.READY, "engine")
        assert "Not a directory" in failed.sentence or "File exists" in failed.sentence
        assert not bench.events.of(KIND.DIED)


async def test_a_crash_loop_backs_off_to_the_limit_and_leaves_the_others_alone(bench: Bench) -> None:
    supervisor = bench.supervisor(bench.spec("steady", WAITS), bench.spec("broken", "raise SystemExit(1)"))
    async with running(supervisor):
        await bench.events.wait(KIND.DIED, "broken", count=6)
        await bench.events.wait(KIND.READY, "steady")
        assert [event.restart_in_seconds for event in bench.events.of(KIND.DIED, "broken")[:6]] == pytest.approx(
            [0.01, 0.02, 0.04, 0.08, 0.08, 0.08]
        )
        assert len(bench.events.of(KIND.STARTED, "steady")) == 1
        assert not bench.events.of(KIND.DIED, "steady")


async def test_a_healthy_run_resets_the_back_off(bench: Bench) -> None:
    backoff = Backoff(first_seconds=0.01, limit_seconds=5, healthy_seconds=0)
    async with running(bench.supervisor(bench.spec("control", "pass"), backoff=backoff)):
        await bench.events.wait(KIND.DIED, count=4)
    assert {event.restart_in_seconds for event in bench.events.of(KIND.DIED)} == {0.01}


async def test_ready_is_waited_for_and_a_probe_that_fails_is_asked_again(bench: Bench) -> None:
    answers: list[bool | Exception] = [ConnectionRefusedError("refused"), False, True]
    asked = 0

    async def probe() -> bool:
        nonlocal asked
        answer = answers[min(asked, 2)]
        asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    supervisor = bench.supervisor(bench.spec("control", WAITS, ready=probe), bench.spec("plain", WAITS, ready=None))
    async with running(supervisor):
        await supervisor.wait_ready(15)
        assert asked == 3
        assert {event.name for event in bench.events.of(KIND.READY)} == {"control", "plain"}


async def test_waiting_too_long_names_who_is_not_ready_and_why(bench: Bench) -> None:
    async def never() -> bool:
        raise ConnectionRefusedError("nobody listens")

    script = "print('waiting for the database', flush=True)\n" + WAITS
    supervisor = bench.supervisor(bench.spec("control", script, ready=never), bench.spec("agent", WAITS))
    async with running(supervisor):
        await bench.events.wait(KIND.READY, "agent")
        await until((bench.folder / "control.up").exists, "control printed its line")
        with pytest.raises(NotReady) as error:
            await supervisor.wait_ready(0.2)
    text = str(error.value)
    assert "control is not ready after 0.2 s" in text
    assert "nobody listens" in text
    assert "waiting for the database" in text
    assert "agent" not in text


async def test_processes_end_in_reverse_order_and_keep_no_pid_files(bench: Bench) -> None:
    supervisor = bench.supervisor(*(bench.spec(name, ENDS_WELL) for name in ("control", "engine", "agent")))
    async with running(supervisor):
        await supervisor.wait_ready(15)
        assert sorted(path.name for path in bench.run_dir.iterdir()) == ["agent.pid", "control.pid", "engine.pid"]
    told = [(event.kind, event.name) for event in bench.events.seen if event.kind in (KIND.STOPPING, KIND.STOPPED)]
    expected = [(kind, name) for name in ("agent", "engine", "control") for kind in (KIND.STOPPING, KIND.STOPPED)]
    assert told == expected
    assert {event.exit_code for event in bench.events.of(KIND.STOPPED)} == {0}
    assert list(bench.run_dir.iterdir()) == []


async def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(bench: Bench) -> None:
    supervisor = bench.supervisor(bench.spec("stubborn", IGNORES_SIGTERM, grace=0.2), bench.spec("good", ENDS_WELL))
    async with running(supervisor):
        await supervisor.wait_ready(15)
        pid = bench.events.of(KIND.STARTED, "stubborn")[0].pid
    killed = bench.events.of(KIND.KILLED)
    assert [(event.name, event.signal_name) for event in killed] == [("stubborn", "SIGKILL")]
    assert [event.name for event in bench.events.of(KIND.STOPPED)] == ["good"]
    assert pid is not None
    assert is_gone(pid)


async def test_a_system_without_pidfds_notices_a_death_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    supervisor = bench.supervisor(bench.spec("engine", ENDS_WELL))
    async with running(supervisor):
        await supervisor.wait_ready(15)
        pid = bench.events.of(KIND.STARTED)[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert (await bench.events.wait(KIND.DIED)).signal_name == "SIGKILL"
        await bench.events.wait(KIND.READY, count=2)
    assert len(bench.events.of(KIND.STOPPED)) == 1


async def test_cancelling_run_ends_the_processes_too(bench: Bench) -> None:
    supervisor = bench.supervisor(bench.spec("engine", ENDS_WELL))
    task = asyncio.create_task(supervisor.run())
    await supervisor.wait_ready(15)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event.exit_code for event in bench.events.of(KIND.STOPPED)] == [0]


async def test_a_second_cancellation_ends_the_grace(bench: Bench) -> None:
    supervisor = bench.supervisor(bench.spec("stubborn", IGNORES_SIGTERM, grace=3600))
    task = asyncio.create_task(supervisor.run())
    await supervisor.wait_ready(15)
    task.cancel()
    await bench.events.wait(KIND.STOPPING)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event.signal_name for event in bench.events.of(KIND.KILLED)] == ["SIGKILL"]


async def test_a_dead_process_leaves_nothing_in_its_group(bench: Bench) -> None:
    supervisor = bench.supervisor(bench.spec("engine", WITH_CHILD))
    async with running(supervisor):
        await supervisor.wait_ready(15)
        worker = int((bench.folder / "engine.up.child").read_text())
        leader = bench.events.of(KIND.STARTED)[0].pid
        assert leader is not None
        os.kill(leader, signal.SIGKILL)
        await bench.events.wait(KIND.DIED)
        await until(lambda: is_gone(worker), "the worker of the dead process is gone")


async def test_a_console_that_went_away_takes_no_service_with_it(bench: Bench) -> None:
    def broken_pipe(event: SupervisorEvent) -> None:
        bench.events(event)
        raise BrokenPipeError

    supervisor = Supervisor([bench.spec("engine", WAITS)], broken_pipe, run_dir=bench.run_dir, backoff=FAST)
    async with running(supervisor):
        await supervisor.wait_ready(15)
        assert not bench.events.of(KIND.DIED)


async def test_a_large_log_is_moved_aside_at_start(bench: Bench) -> None:
    spec = bench.spec("engine", "print('fresh', flush=True)\n" + WAITS)
    spec.log_path.parent.mkdir()
    with spec.log_path.open("wb") as log:
        log.truncate(20 * 1024 * 1024 + 1)
    supervisor = bench.supervisor(spec)
    async with running(supervisor):
        await supervisor.wait_ready(15)
    assert spec.log_path.read_text() == "fresh\n"
    assert spec.log_path.with_name("engine.log.1").stat().st_size == 20 * 1024 * 1024 + 1


async def test_a_log_is_appended_to_and_an_event_quotes_only_the_present_run(bench: Bench) -> None:
    spec = bench.spec("engine", "print('now'); raise SystemExit(1)")
    spec.log_path.parent.mkdir()
    spec.log_path.write_text("an earlier run\n")
    async with running(bench.supervisor(spec)):
        died = await bench.events.wait(KIND.DIED)
    assert died.log_lines == ("now",)
    assert spec.log_path.read_text().startswith("an earlier run\nnow\n")


def test_two_processes_cannot_share_a_name(bench: Bench) -> None:
    with pytest.raises(ValueError, match="same name"):
        bench.supervisor(bench.spec("engine", WAITS), bench.spec("engine", WAITS))


class Watched:
    """A process that the supervisor only watches."""

    def __init__(self) -> None:
        self.revivals_that_fail = 0
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])

    def alive(self) -> bool:
        return self.process.poll() is None

    async def revive(self) -> None:
        if self.revivals_that_fail:
            self.revivals_that_fail -= 1
            raise OSError("the disk is full")
        self.start()

    def spec(self, *, interval_seconds: float, with_pid: bool) -> WatchSpec:
        pid = (lambda: self.process.pid) if with_pid else None
        return WatchSpec("postgres", self.alive, self.revive, interval_seconds, pid)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.parametrize(
    ("interval_seconds", "with_pid"),
    [
        pytest.param(3600, True, id="at-once-through-its-pid"),
        pytest.param(0.02, False, id="by-looking"),
    ],
)
async def test_a_watched_process_is_missed_and_brought_back(
    bench: Bench, interval_seconds: float, with_pid: bool
) -> None:
    watched = Watched()
    try:
        watch = watched.spec(interval_seconds=interval_seconds, with_pid=with_pid)
        supervisor = bench.supervisor(bench.spec("engine", WAITS), watches=(watch,))
        async with running(supervisor):
            await supervisor.wait_ready(15)
            for round_number in (1, 2):
                watched.process.kill()
                await bench.events.wait(KIND.LOST, "postgres", count=round_number)
                await bench.events.wait(KIND.REVIVED, "postgres", count=round_number)
                assert watched.alive()
    finally:
        watched.end()


async def test_a_revival_that_fails_is_told_and_tried_again(bench: Bench) -> None:
    watched = Watched()
    watched.revivals_that_fail = 2
    try:
        async with running(bench.supervisor(watches=(watched.spec(interval_seconds=3600, with_pid=True),))):
            watched.process.kill()
            await bench.events.wait(KIND.REVIVED)
            failures = bench.events.of(KIND.NOT_REVIVED)
            assert [event.restart_in_seconds for event in failures] == pytest.approx([0.01, 0.02])
            assert "could not be brought back: the disk is full" in failures[0].sentence
    finally:
        watched.end()


SUPERVISOR_PROGRAM = """
import asyncio, os, pathlib, sys
from yard_runtime.supervisor import Supervisor
from yard_runtime.supervised_process import ProcessSpec

folder = pathlib.Path(sys.argv[1])
scripts = dict(zip(sys.argv[2::2], sys.argv[3::2]))

async def main():
    specs = [
        ProcessSpec(name, (sys.executable, "-c", script, str(folder / f"{name}.up")), dict(os.environ),
                    folder / f"{name}.log")
        for name, script in scripts.items()
    ]
    await Supervisor(specs, lambda event: None, run_dir=folder / "run").run()

asyncio.run(main())
"""


async def kill_a_supervisor_of(folder: Path, scripts: dict[str, str]) -> dict[str, int]:
    """Run a supervisor in a process of its own, kill -9 it once its children are up; return their pids."""
    arguments = [part for pair in scripts.items() for part in pair]
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", SUPERVISOR_PROGRAM, str(folder), *arguments)
    try:
        await until(lambda: all((folder / f"{name}.up").exists() for name in scripts), "the children are up")
        pids = {name: recorded_pid(folder / "run" / f"{name}.pid") for name in scripts}
        assert not any(is_gone(pid) for pid in pids.values())
    finally:
        program.kill()
        await program.wait()
    return pids


def recorded_pid(path: Path) -> int:
    return json.loads(path.read_text())["pid"]


async def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    pids = await kill_a_supervisor_of(tmp_path, {"control": WAITS, "stubborn": IGNORES_SIGTERM})
    for pid in pids.values():
        await until(lambda pid=pid: is_gone(pid), f"{pid} is gone")


async def test_what_a_killed_supervisor_left_is_ended_by_the_next_start(tmp_path: Path) -> None:
    pids = await kill_a_supervisor_of(tmp_path, {"engine": WITH_CHILD})
    worker = int((tmp_path / "engine.up.child").read_text())
    await until(lambda: is_gone(pids["engine"]), "the engine is gone")
    assert not is_gone(worker), "the kernel ends children, not grandchildren"
    ended = await asyncio.to_thread(end_stragglers, tmp_path / "run")
    assert [(straggler.name, straggler.pid) for straggler in ended] == [("a child of engine", worker)]
    await until(lambda: is_gone(worker), "the worker is gone")
    assert list((tmp_path / "run").iterdir()) == []
