"""`make up` survives Ctrl-C and kill -9 of everything: a second one goes on with all jobs, queues and history."""

import json
import signal

from support.installation import Installation, installation, kill, until


def _small() -> tuple[str, ...]:
    return ("--nodes", "1", "--devices", "4xH100-80GB")


def _state(made: Installation, job_id: str) -> str:
    return made.json("describe", job_id)["state"]


def test_a_running_task_outlives_ctrl_c_and_its_exit_code_is_known_afterwards() -> None:
    with installation(*_small()) as made:
        made.up()
        gate = made.root / "gate"
        script = f"while [ ! -e {gate} ]; do sleep 0.05; done; echo went on; exit 5"
        job = made.json("run", "--detach", "--", "sh", "-c", script)
        until(lambda: _state(made, job["id"]) == "running", 20, "the job runs")
        made.yard("queues", "set", "research", "--gpu-quota", "2")
        assert made.interrupt() == 0
        assert any("1 task" in line for line in made.console), made.console
        gate.touch()
        made.up()
        until(lambda: _state(made, job["id"]) == "failed", 20, "the end that came while nothing ran")
        seen = made.json("describe", job["id"])
        assert seen["exit_code"] == 5
        assert made.yard("logs", job["id"]).stdout == "went on\n"
        queues = {queue["name"]: queue["gpu_quota"] for queue in made.json("queues")["items"]}
        assert queues["research"] == 2
        assert made.json("audit")["findings"] == []


def test_kill_9_of_everything_but_the_keepers_loses_nothing() -> None:
    with installation(*_small()) as made:
        made.up()
        gate = made.root / "gate"
        script = f"echo once >> {made.root}/ran; while [ ! -e {gate} ]; do sleep 0.05; done; exit 3"
        job = made.json("run", "--detach", "--", "sh", "-c", script)
        until(lambda: _state(made, job["id"]) == "running", 20, "the job runs")
        made.kill_everything(keepers=False)
        gate.touch()
        made.up()
        until(lambda: _state(made, job["id"]) == "failed", 30, "the job's end")
        assert made.json("describe", job["id"])["exit_code"] == 3
        assert (made.root / "ran").read_text() == "once\n"
        until(lambda: not made.marked_processes(), 10, "no process of a task is left")
        assert made.json("audit")["findings"] == []


def test_a_keepers_death_is_said_and_leaves_nothing() -> None:
    with installation(*_small()) as made:
        made.up()
        job = made.json("run", "--detach", "--", "sh", "-c", f"echo once >> {made.root}/ran; sleep 1000")
        until(lambda: _state(made, job["id"]) == "running", 20, "the job runs")
        for pid in made.keeper_pids():
            kill(pid)
        until(lambda: _state(made, job["id"]) == "failed", 30, "the job's end")
        assert made.json("describe", job["id"])["reason"] == "keeper_lost"
        until(lambda: not made.marked_processes(), 10, "no process of the task is left")
        again = made.yard("run", "--wait", "--", "echo", "works again")
        assert again.stdout == "works again\n"
        assert (made.root / "ran").read_text() == "once\n"


def test_down_stops_running_tasks() -> None:
    with installation(*_small()) as made:
        made.up()
        job = made.json("run", "--detach", "--", "sleep", "1000")
        until(lambda: _state(made, job["id"]) == "running", 20, "the job runs")
        made.down()
        assert made.supervisor.wait(20) == 0
        assert made.marked_processes() == []
        assert made.keeper_pids() == []
        assert made.postmaster_pid() is None
        made.up()
        until(lambda: _state(made, job["id"]) == "failed", 20, "the job's end is reported afterwards")


def test_a_second_up_on_the_same_folder_is_refused_with_the_pid() -> None:
    with installation(*_small()) as made:
        made.up()
        done = made.yard("up", "--data-dir", str(made.data), check=False)
        assert done.returncode == 1
        assert str(made.supervisor.pid) in done.stderr


def test_a_data_folder_of_another_major_version_is_refused_with_instructions() -> None:
    with installation(*_small()) as made:
        made.up()
        made.interrupt()
        version = made.data / "postgres" / "pgdata" / "PG_VERSION"
        version.write_text("13\n")
        done = made.yard("up", "--data-dir", str(made.data), "--http", f"127.0.0.1:{made.port}", check=False)
        assert done.returncode == 1
        assert "13" in done.stderr
        assert "--data-dir" in done.stderr
        version.write_text("18\n")


def test_postgresql_away_is_503_and_services_continue_when_it_is_back() -> None:
    with installation(*_small()) as made:
        made.up()
        postmaster = made.postmaster_pid()
        assert postmaster is not None
        with made.client() as client:
            kill_signal = signal.SIGKILL
            _kill_and_hold(made, postmaster, kill_signal, client)
        done = made.yard("run", "--wait", "--", "echo", "back")
        assert done.stdout == "back\n"


def _kill_and_hold(made: Installation, postmaster: int, number: signal.Signals, client: "object") -> None:
    """While the supervisor is stopped nobody revives PostgreSQL, so the API has to answer without it."""
    import os

    import httpx

    assert isinstance(client, httpx.Client)
    made.supervisor.send_signal(signal.SIGSTOP)
    try:
        os.kill(postmaster, number)
        document = {"name": "away", "run": {"command": ["true"]}}
        answer = until(
            lambda: (a := client.post("/v1/jobs", json=document)).status_code == 503 and a, 20, "503 while it is away"
        )
        assert answer.headers["retry-after"]
        assert answer.headers["content-type"] == "application/problem+json"
        assert json.loads(answer.text)["status"] == 503
    finally:
        made.supervisor.send_signal(signal.SIGCONT)
    until(lambda: client.get("/v1/jobs").status_code == 200, 30, "the API answers again")
    names = [job["name"] for job in client.get("/v1/jobs").json()["items"]]
    assert "away" not in names
