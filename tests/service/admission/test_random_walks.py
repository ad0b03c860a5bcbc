"""Random people and a random pool, with every event delivered again at random moments.

At every step the audit's checks hold (the desk runs them after each unit of work) and old events change nothing
(INV-8); over the whole walk every job goes through legal states only, has at most one attempt out (INV-2), and comes to
an end when everybody is done (INV-5), with all quota given back (INV-4).
"""

import random
import secrets
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.admission import TOPICS_IN, Desk, log_of
from yard_domain.states import JobState, may_become
from yard_events.types import AttemptStarted, JobFact, PlaceAttempt, StopAttempt, WithdrawAttempt


@dataclass(slots=True)
class Live:
    """One attempt as placement sees it."""

    name: str
    state: str = "pending"
    started: bool = False
    stop: str | None = None


@dataclass(slots=True)
class RandomPool:
    """Placement's side of the contract: what it may say of an attempt next, and nothing else."""

    desk: Desk
    choice: random.Random
    heard: int = 0
    live: dict[str, Live] = field(default_factory=dict)

    async def listen(self) -> None:
        asked = await self.desk.asked()
        for command in asked[self.heard :]:
            attempt = self.live.get(command.attempt_id)
            if isinstance(command, PlaceAttempt):
                name = command.job_id.removeprefix("job-")
                assert all(other.name != name for other in self.live.values()), f"two attempts of {name} are out"
                self.live[command.attempt_id] = Live(name)
            elif attempt is not None and isinstance(command, StopAttempt):
                attempt.stop = attempt.stop or command.reason
            elif attempt is not None and isinstance(command, WithdrawAttempt) and attempt.state == "pending":
                attempt.stop = attempt.stop or "too_large"
        self.heard = len(asked)

    async def step(self, moves: dict[str, list[str]]) -> bool:
        """One decision; False when there is nothing to decide on."""
        await self.listen()
        if not self.live:
            return False
        attempt_id = self.choice.choice(sorted(self.live))
        attempt = self.live[attempt_id]
        move = "exit" if attempt.stop is not None else self.choice.choice(moves[attempt.state])
        if move == "exit":
            del self.live[attempt_id]
        await self._decide(move, attempt)
        return True

    async def _decide(self, move: str, attempt: Live) -> None:
        desk, name = self.desk, attempt.name
        if move == "exit" and attempt.stop is not None:
            await desk.exit(name, "stopped", attempt.stop, None)
        elif move == "exit":
            ways = ["succeeded", "failed", "lost"] if attempt.started else ["failed", "lost"]
            await desk.exit(name, self.choice.choice(ways))
        elif move == "finish":
            self.live = {key: other for key, other in self.live.items() if other is not attempt}
            await desk.exit(name)
        elif move == "block":
            await desk.block(name, self.choice.choice(["insufficient_gpu", "behind_earlier"]))
        elif move == "hopeless":
            await desk.block(name, "too_large", hopeless=True)
        elif move == "grant":
            attempt.state = "granted"
            await desk.grant(name)
        elif move == "start":
            attempt.state, attempt.started = "running", True
            await desk.decide(AttemptStarted, name)
        elif move == "lose":
            attempt.state = "lost"
            await desk.lose(name)
        else:
            attempt.state = "running" if attempt.started else "granted"
            await desk.recover(name)


ANYTHING = {
    "pending": ["grant", "grant", "block", "hopeless"],
    "granted": ["start", "start", "lose", "exit"],
    "running": ["exit", "exit", "lose"],
    "lost": ["recover", "exit"],
}
TO_THE_END = {"pending": ["grant"], "granted": ["start"], "running": ["finish"], "lost": ["recover"]}


async def person(desk: Desk, choice: random.Random, names: list[str], walk: str) -> None:
    """Submits something, or cancels anything."""
    if names and choice.random() < 0.25:
        await desk.cancel(choice.choice(names))
        return
    names.append(f"{walk}-{len(names)}")
    run_time = choice.choice([None, None, "30s"])
    await desk.submit(
        names[-1],
        gpus=choice.choice([1, 1, 2, 4, 5]),
        priority=choice.randint(-1, 1),
        attempts=choice.randint(1, 3),
        max_run=run_time,
    )


async def deliver_again(desk: Desk, choice: random.Random) -> None:
    """Some of what was handled before, in any order and any multiplicity, in one batch."""
    before = await desk.everything()
    topic = choice.choice(TOPICS_IN)
    records = await log_of(desk.runtime, topic)
    if records:
        again = choice.choices(records, k=choice.randint(1, 20))
        await desk.handle(topic, again)
        await desk.settle()
    assert await desk.everything() == before


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
async def test_walks(desk: Desk, seed: int) -> None:
    choice = random.Random(seed)
    walk = secrets.token_hex(4)
    pool = RandomPool(desk, choice, heard=len(await desk.asked()))
    names: list[str] = []
    for _ in range(30):
        actor = choice.random()
        if actor < 0.35:
            await person(desk, choice, names, walk)
        elif actor < 0.8:
            await pool.step(ANYTHING)
        elif actor < 0.9:
            await desk.wait(choice.choice([1, 20, 100]))
        else:
            await desk.node(f"n{choice.randint(1, 2)}", generation=choice.randint(1, 3))
        await deliver_again(desk, choice)
    await finish(desk, pool, walk)
    await look_back(desk, names)


async def finish(desk: Desk, pool: RandomPool, walk: str) -> None:
    """The fleet grows, the pool grants everything: until nothing is left but jobs larger than the whole quota."""
    await desk.node(f"node-{walk}")
    for _ in range(500):
        if not await pool.step(TO_THE_END):
            break
    left = await desk.rows("SELECT name, held FROM admission.jobs WHERE ended_at IS NULL")
    assert {row["held"] for row in left} <= {"quota_too_small"}
    assert await desk.used() == 0
    for row in left:
        await desk.cancel(row["name"])


async def look_back(desk: Desk, names: list[str]) -> None:
    facts = await desk.facts(JobFact)
    for name in names:
        states = [JobState(fact.state) for fact in facts if fact.job_id == f"job-{name}"]
        assert states[0] is JobState.QUEUED
        assert states[-1].terminal
        assert all(may_become(old, new) for old, new in pairwise(states)), states
