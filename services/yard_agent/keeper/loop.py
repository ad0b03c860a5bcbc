"""The keeper's loop: requests in, children up and down, one look at /proc when it is due, one write to the log a round.

Nothing is told to a client before the log holds it. It sleeps until something happens; with tasks running it wakes
once a second to remember their trees, without it does not wake at all.
"""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from connections import PROTOCOL_VERSION, Client, launch_of
from ownership import Ownership
from process_tree import boot_id, read_process, read_processes, send_signal
from task import EXITED, RUNNING, Task, replay
from task_child import Child, fork_child
from task_log import TaskLog

SNAPSHOT_SECONDS = 1.0
# A look at a machine with thousands of processes takes long: it may use this part of the time at most.
SNAPSHOT_SHARE = 0.02
FIRST_SWEEP_SECONDS = 0.01
LAST_SWEEP_SECONDS = 1.0
CLOSING_GRACE_SECONDS = 10.0
LOG_RETRY_SECONDS = 1.0
KEEPER_LOST = "keeper_lost"
NODE_REBOOTED = "node_rebooted"


class Keeper:
    """`live` are the tasks not yet over; `effects` are (record, action once it is on disk), in order."""

    def __init__(self, log: TaskLog, sweep_grace_seconds: float) -> None:
        self._log = log
        self._sweep_grace_seconds = sweep_grace_seconds
        self._boot = boot_id()
        self._tasks: dict[str, Task] = {}
        self._live: dict[str, Task] = {}
        self._roots: dict[int, Task] = {}
        self._starting: dict[int, Task] = {}
        self._clients: dict[int, Client] = {}
        self._starts: list[tuple[Client, dict]] = []
        self._effects: list[tuple[dict | None, Callable[[], None]]] = []
        self._log_retry_at: float | None = None
        self._ownership = Ownership()
        self._poller = select.poll()
        self._closing = False
        self._terminated = False

    # --- after a predecessor -----------------------------------------------------------------------------------------

    def recover(self) -> None:
        """End what a dead predecessor left: its tasks can no longer be waited for, so their exit codes are lost."""
        self._tasks = replay(self._log.read())
        self._log.rewrite([record for task in self._tasks.values() for record in task.records()])
        now = time.monotonic()
        for task in self._tasks.values():
            if task.over:
                continue
            self._live[task.allocation_id] = task
            task.scan_at = now
            if task.boot != self._boot:
                task.pid = None  # a number of another boot
                if task.state != EXITED:
                    self._end(task, now, NODE_REBOOTED, None)
            elif task.pid is None and task.state != EXITED:
                self._end(task, now, KEEPER_LOST, "the command had not been started")
        self._scan(now)
        self._commit()

    # --- the loop ----------------------------------------------------------------------------------------------------

    def serve(self, listener: socket.socket) -> None:
        """Until a client shuts the idle keeper down, or SIGTERM: then every task is stopped first."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, lambda _number, _frame: setattr(self, "_terminated", True))
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(ignored, signal.SIG_IGN)
        self._poller.register(wake_read, select.POLLIN)
        self._poller.register(listener, select.POLLIN)
        while not (self._closing and not self._live and not self._effects):
            for fd, _event in self._poller.poll(self._timeout_ms()):
                if fd == wake_read:
                    os.read(wake_read, 4096)
                elif fd == listener.fileno():
                    self._accept(listener)
                elif fd in self._starting:
                    self._read_start(self._starting[fd])
                elif fd in self._clients:
                    self._serve_client(self._clients[fd])
            self._begin_starts()
            if self._terminated and not self._closing:
                self._close()
            now = time.monotonic()
            self._reap(now)
            self._scan(now)
            self._commit()

    def _timeout_ms(self) -> int | None:
        due = [task.scan_at for task in self._live.values() if task.scan_at is not None]
        if self._log_retry_at is not None:
            due.append(self._log_retry_at)
        return max(0, int((min(due) - time.monotonic()) * 1000) + 1) if due else None

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _address = listener.accept()
        except OSError:
            return
        client = Client(connection, self._poller)
        self._clients[connection.fileno()] = client
        client.send({"keeper": os.getpid(), "version": PROTOCOL_VERSION})

    def _serve_client(self, client: Client) -> None:
        fd = client.connection.fileno()
        client.flush()
        for request in client.receive() if not client.closed else ():
            self._handle(client, request)
        if client.closed:
            self._clients.pop(fd, None)

    def _push(self, name: str, status: dict) -> None:
        for fd, client in list(self._clients.items()):
            client.send({"push": name, "task": status})
            if client.closed:
                del self._clients[fd]

    def _commit(self) -> bool:
        """Write what happened, then tell it. False while the log cannot be written: nothing is told then."""
        if not self._effects:
            return True
        try:
            records = [record for record, _action in self._effects if record is not None]
            if records:
                self._log.append(records)
            self._log_retry_at = None
        except OSError as error:
            print(f"keeper: {self._log.path}: {error}", file=sys.stderr, flush=True)
            self._log_retry_at = time.monotonic() + LOG_RETRY_SECONDS
            return False
        effects, self._effects = self._effects, []
        for _record, action in effects:
            action()
        if self._log.overgrown:
            self._compact()
        return True

    def _compact(self) -> None:
        try:
            self._log.rewrite([record for task in self._tasks.values() for record in task.records()])
        except OSError as error:  # the long log is still right
            print(f"keeper: {self._log.path}: {error}", file=sys.stderr, flush=True)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _handle(self, client: Client, request: dict) -> None:
        operation, number = request.get("op"), request.get("n")
        if operation == "start":
            self._starts.append((client, request))
            return
        self._begin_starts()
        if operation == "stop":
            self._stop(client, request)
        elif not self._commit():
            client.send({"n": number, "error": "the keeper's log cannot be written", "kind": "retry"})
        elif operation == "list":
            client.send({"n": number, "tasks": [task.status() for task in self._tasks.values()]})
        elif operation == "forget":
            self._forget(client, request)
        elif operation == "shutdown":
            self._closing = self._closing or not self._live
            client.send({"n": number, "closing": self._closing})
        else:
            client.send({"n": number, "error": f"unknown operation {operation!r}", "kind": "invalid"})

    def _forget(self, client: Client, request: dict) -> None:
        task = self._tasks.get(str(request.get("id")))
        if task is None:
            client.send({"n": request.get("n")})
        elif not task.over:
            client.send({"n": request.get("n"), "error": "the task has not ended and emptied", "kind": "busy"})
        else:
            del self._tasks[task.allocation_id]
            record = {"r": "forget", "id": task.allocation_id}
            self._effects.append((record, partial(client.send, {"n": request.get("n")})))

    def _stop(self, client: Client, request: dict) -> None:
        task, grace = self._tasks.get(str(request.get("id"))), request.get("grace_seconds", 0)
        if not isinstance(grace, int | float) or not 0 <= grace <= 86_400:
            client.send({"n": request.get("n"), "error": "grace_seconds must be 0 to 86400", "kind": "invalid"})
            return
        if task is not None and not task.over:
            self._begin_stop(task, grace)
        client.send({"n": request.get("n"), "task": task.status() if task is not None else None})

    def _begin_stop(self, task: Task, grace_seconds: float) -> None:
        """Asking again never asks the processes again; it only brings the SIGKILL nearer."""
        now = time.monotonic()
        first = task.kill_at is None
        kill_at = now + grace_seconds
        task.kill_at = kill_at if task.kill_at is None else min(task.kill_at, kill_at)
        task.scan_at = min(task.kill_at, task.scan_at if task.scan_at is not None else now)
        if not first or grace_seconds == 0 or task.pid not in self._roots:
            return
        task.terminated.update(process.pid for process in read_processes().values() if process.group == task.pid)
        try:
            os.killpg(task.pid, signal.SIGTERM)
        except OSError:  # forked this moment, not yet a group; or it runs as another user now
            send_signal(task.pid, task.started, signal.SIGTERM)

    def _close(self) -> None:
        self._closing = True
        for task in self._live.values():
            self._begin_stop(task, CLOSING_GRACE_SECONDS)

    # --- starting ----------------------------------------------------------------------------------------------------

    def _begin_starts(self) -> None:
        """Intents on disk → fork → pids on disk → leave to run. One write for all that came together."""
        starts, self._starts = self._starts, []
        if not starts:
            return
        fresh: dict[str, tuple[Task, tuple]] = {}
        for client, request in starts:
            allocation_id, launch = request.get("id"), launch_of(request)
            if not isinstance(allocation_id, str) or not allocation_id or isinstance(launch, str):
                problem = launch if isinstance(launch, str) else "id must be a text"
                client.send({"n": request.get("n"), "error": problem, "kind": "invalid"})
            elif allocation_id not in self._tasks and not self._closing:
                fresh.setdefault(allocation_id, (Task(allocation_id, self._boot), launch))
        children = self._fork_all(fresh)
        try:
            self._log.append([task.pid_record() for task, _child in children])
        except OSError as error:
            for task, child in children:  # closed without leave: it ends by itself, and is reaped
                task.reason, task.detail = "start_failed", f"the keeper's log: {error.strerror}"
                os.close(child.release_fd)
            children = []
        for _task, child in children:
            with suppress(BrokenPipeError):  # somebody killed it while it waited
                os.write(child.release_fd, b"1")
            os.close(child.release_fd)
        committed = self._commit()
        for client, request in starts:
            task = self._tasks.get(request.get("id", ""))
            if task is not None and committed:
                client.send({"n": request.get("n"), "task": task.status()})
            elif isinstance(request.get("id"), str) and not isinstance(launch_of(request), str):
                client.send({"n": request.get("n"), "error": "the keeper takes no task now", "kind": "retry"})

    def _fork_all(self, fresh: dict[str, tuple[Task, tuple]]) -> list[tuple[Task, Child]]:
        try:
            self._log.append([task.intent_record() for task, _launch in fresh.values()])
        except OSError as error:
            print(f"keeper: {self._log.path}: {error}", file=sys.stderr, flush=True)
            return []
        now = time.monotonic()
        children: list[tuple[Task, Child]] = []
        for task, (argv, env, workdir, output_path) in fresh.values():
            self._tasks[task.allocation_id] = self._live[task.allocation_id] = task
            env["YARD_ALLOCATION_ID"] = task.allocation_id
            try:
                child = fork_child(argv, env, workdir, output_path)
            except OSError as error:
                self._end(task, now, "start_failed", f"fork: {error.strerror}")
                continue
            process = read_process(child.pid)
            task.pid, task.started, task.failure_fd = child.pid, process.started, child.failure_fd
            task.scan_at = now + SNAPSHOT_SECONDS
            self._roots[child.pid] = task
            self._starting[child.failure_fd] = task
            self._poller.register(child.failure_fd, select.POLLIN)
            children.append((task, child))
        return children

    def _read_start(self, task: Task, ended: bool = False) -> None:
        """The pipe of a start: closed without a word by a successful exec, else why there was none."""
        try:
            message = os.read(task.failure_fd, 4096)
        except BlockingIOError:
            if not ended:  # an event of the descriptor that had this number before
                return
            message = b""
        self._poller.unregister(task.failure_fd)
        del self._starting[task.failure_fd]
        os.close(task.failure_fd)
        task.failure_fd = -1
        if message:
            task.reason, _, task.detail = os.fsdecode(message).partition(" ")
        elif task.reason is None:
            task.state = RUNNING
            self._effects.append((None, partial(self._push, "started", task.status())))

    # --- ending ------------------------------------------------------------------------------------------------------

    def _reap(self, now: float) -> None:
        """Exit codes of roots; whatever else ended was adopted, and may have been the last of a task."""
        adopted = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            task = self._roots.pop(pid, None)
            if task is None:
                adopted = True
            else:
                self._root_ended(task, now, status)
        if adopted:
            for task in self._live.values():
                if task.state == EXITED:
                    task.scan_at = now

    def _root_ended(self, task: Task, now: float, status: int) -> None:
        if task.failure_fd >= 0:
            self._read_start(task, ended=True)
        if task.reason is not None:
            self._end(task, now, task.reason, task.detail)
        elif os.WIFSIGNALED(status):
            task.signal = os.WTERMSIG(status)
            self._end(task, now, "signal", None)
        else:
            task.exit_code = os.WEXITSTATUS(status)
            self._end(task, now, "exit_code", None)

    def _end(self, task: Task, now: float, reason: str, detail: str | None) -> None:
        task.state, task.reason, task.detail = EXITED, reason, detail
        self._effects.append((task.exit_record(), partial(self._push, "exited", task.status())))
        sweep_until = now + self._sweep_grace_seconds
        task.kill_at = sweep_until if task.kill_at is None else min(task.kill_at, sweep_until)
        task.scan_at, task.scan_delay = now, FIRST_SWEEP_SECONDS

    def _scan(self, now: float) -> None:
        """One look at /proc for all tasks when it is due for one; a second to confirm what looks empty."""
        if not any(task.scan_at is not None and task.scan_at <= now for task in self._live.values()):
            return
        again = True
        while again:
            began = time.monotonic()
            processes = read_processes()
            live = list(self._live.values())
            for stray in self._ownership.assign(live, processes):
                send_signal(stray.pid, stray.started, signal.SIGKILL)
            snapshot_seconds = max(SNAPSHOT_SECONDS, (time.monotonic() - began) / SNAPSHOT_SHARE)
            wishes = [self._settle(task, now, snapshot_seconds) for task in live]
            again = any(wishes)

    def _settle(self, task: Task, now: float, snapshot_seconds: float) -> bool:
        """What is due for a task by what was seen of it. True: look again at once."""
        if task.orphaned and task.state != EXITED and task.pid not in task.members:
            self._end(task, now, KEEPER_LOST, None)
        if task.state == EXITED and not task.members and not task.blocked:
            # Once is not enough: a process born during the look below the number it had reached is not seen.
            task.empty_scans += 1
            if task.empty_scans < 2:
                return True
            task.emptied, task.scan_at = True, None
            del self._live[task.allocation_id]
            self._effects.append((task.emptied_record(), partial(self._push, "emptied", task.status())))
            return False
        task.empty_scans = 0
        if task.orphaned or (task.kill_at is not None and now >= task.kill_at):
            for pid, started in task.members.items():
                send_signal(pid, started, signal.SIGKILL)
        elif task.state == EXITED:
            for pid, started in task.members.items():
                if pid not in task.terminated:
                    task.terminated.add(pid)
                    send_signal(pid, started, signal.SIGTERM)
        else:
            task.scan_at = now + snapshot_seconds
            if task.kill_at is not None:
                task.scan_at = min(task.scan_at, task.kill_at)
            return False
        self._look_again_soon(task, now)
        return False

    def _look_again_soon(self, task: Task, now: float) -> None:
        """Soon after the first signal, ever more rarely when nothing helps (a process the kernel cannot end)."""
        task.scan_delay = min(max(task.scan_delay * 2, FIRST_SWEEP_SECONDS), LAST_SWEEP_SECONDS)
        task.scan_at = now + task.scan_delay
        if task.kill_at is not None and task.kill_at > now:
            task.scan_at = min(task.scan_at, task.kill_at)
