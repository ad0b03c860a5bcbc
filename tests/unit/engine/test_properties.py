"""What holds for every pool and every pending set."""

from collections import Counter
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from yard_engine.decide import Plan, decide
from yard_engine.snapshot import Device, Node, Pending, Shape

MODELS = ("A100", "H100")


@st.composite
def nodes(draw: st.DrawFn, most: int = 4, devices: int = 6) -> tuple[Node, ...]:
    made: list[Node] = []
    for number in range(draw(st.integers(0, most))):
        name = f"n{number}"
        states = draw(st.lists(st.tuples(st.sampled_from(MODELS), st.sampled_from("fhs")), max_size=devices))
        cpus, memory = draw(st.integers(0, 8)), draw(st.integers(0, 8))
        made.append(
            Node(
                name=name,
                ready=draw(st.integers(0, 9)) > 0,
                cordoned=draw(st.integers(0, 9)) == 0,
                cpus=float(cpus),
                memory_bytes=memory,
                free_cpus=float(cpus - draw(st.integers(0, 3))),
                free_memory_bytes=memory - draw(st.integers(0, 3)),
                devices=tuple(
                    Device(f"{name}/{i}", model, free=state == "f", healthy=state != "s")
                    for i, (model, state) in enumerate(states)
                ),
            )
        )
    return tuple(made)


shapes = st.builds(
    Shape,
    count=st.integers(1, 4),
    gpus=st.integers(1, 4),
    models=st.sampled_from([frozenset(), frozenset({"A100"}), frozenset({"H100"}), frozenset(MODELS)]),
    cpus=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    memory_bytes=st.integers(0, 4),
)
pending_sets = st.lists(shapes, max_size=8).map(lambda found: [Pending(f"a{i}", s) for i, s in enumerate(found)])


def check(pool: tuple[Node, ...], pending: list[Pending], plan: Plan) -> None:
    by_name = {node.name: node for node in pool}
    device_of = {device.uuid: device for node in pool for device in node.devices}
    shape_of = {attempt.attempt_id: attempt.shape for attempt in pending}
    used: Counter[str] = Counter()
    cpus: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    for placed in plan.placed:
        shape = shape_of[placed.attempt_id]
        assert [task.task_rank for task in placed.tasks] == list(range(shape.count)), "a gang is whole or absent"
        for task in placed.tasks:
            node = by_name[task.node]
            assert node.schedulable
            assert set(task.device_uuids) <= {device.uuid for device in node.devices}
            assert len(set(task.device_uuids)) == shape.gpus
            models = {device_of[uuid].model for uuid in task.device_uuids}
            assert len(models) == 1, "models are not mixed in a task"
            assert not shape.models or models <= shape.models
            assert all(device_of[uuid].free for uuid in task.device_uuids)
            used.update(task.device_uuids)
            cpus[node.name] += shape.cpus
            memory[node.name] += shape.memory_bytes
    assert not used or max(used.values()) == 1, "no device twice"
    for name in cpus:
        assert cpus[name] == 0 or cpus[name] <= by_name[name].free_cpus + 1e-6
        assert memory[name] == 0 or memory[name] <= by_name[name].free_memory_bytes
    answered = [placed.attempt_id for placed in plan.placed] + [blocked.attempt_id for blocked in plan.blocked]
    assert sorted(answered) == sorted(shape_of), "every attempt gets exactly one answer"


@given(nodes(), pending_sets)
@settings(max_examples=400, deadline=None)
def test_every_plan_is_legal(pool: tuple[Node, ...], pending: list[Pending]) -> None:
    check(pool, pending, decide(pool, pending))


@given(nodes(), pending_sets, st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_the_order_of_the_nodes_changes_nothing(pool: tuple[Node, ...], pending: list[Pending], random) -> None:
    shuffled = list(pool)
    random.shuffle(shuffled)
    assert decide(tuple(shuffled), pending) == decide(pool, pending) == decide(pool, list(pending))


@given(nodes(), pending_sets, pending_sets)
@settings(max_examples=200, deadline=None)
def test_what_is_behind_changes_nothing_ahead(
    pool: tuple[Node, ...], ahead: list[Pending], behind: list[Pending]
) -> None:
    late = [Pending(f"late-{attempt.attempt_id}", attempt.shape) for attempt in behind]
    names = {attempt.attempt_id for attempt in ahead}
    alone, both = decide(pool, ahead), decide(pool, ahead + late)
    assert alone.placed == tuple(p for p in both.placed if p.attempt_id in names)
    assert alone.blocked == tuple(b for b in both.blocked if b.attempt_id in names)


def fits_somehow(pool: tuple[Node, ...], shape: Shape) -> bool:
    """By exhaustive search, with nothing of the engine's arithmetic: tasks are put one by one, on every node and model
    in turn."""
    rooms = [node for node in pool if node.ready and not node.cordoned]

    @cache
    def put(left: int, state: tuple[tuple[tuple[int, ...], float, int], ...]) -> bool:
        if left == 0:
            return True
        for at, (free, cpus, memory) in enumerate(state):
            if (shape.cpus and cpus + 1e-9 < shape.cpus) or (shape.memory_bytes and memory < shape.memory_bytes):
                continue
            for model, count in enumerate(free):
                if count < shape.gpus or (shape.models and MODELS[model] not in shape.models):
                    continue
                less = tuple(c - shape.gpus if m == model else c for m, c in enumerate(free))
                after = (less, cpus - shape.cpus, memory - shape.memory_bytes)
                if put(left - 1, (*state[:at], after, *state[at + 1 :])):
                    return True
        return False

    start = tuple(
        (
            tuple(sum(d.free and d.model == model for d in node.devices) for model in MODELS),
            node.free_cpus,
            node.free_memory_bytes,
        )
        for node in rooms
    )
    return put(shape.count, start)


@given(nodes(most=3, devices=5), shapes)
@settings(max_examples=600, deadline=None)
def test_alone_it_is_placed_exactly_when_it_fits_somehow(pool: tuple[Node, ...], shape: Shape) -> None:
    plan = decide(pool, [Pending("a", shape)])
    assert bool(plan.placed) == fits_somehow(pool, shape)


@given(nodes(most=3, devices=5), shapes)
@settings(max_examples=400, deadline=None)
def test_hopeless_means_that_it_does_not_fit_an_empty_healed_pool(pool: tuple[Node, ...], shape: Shape) -> None:
    blocked = decide(pool, [Pending("a", shape)]).blocked
    healed = tuple(
        Node(
            name=node.name,
            ready=True,
            cordoned=False,
            cpus=node.cpus,
            memory_bytes=node.memory_bytes,
            free_cpus=node.cpus,
            free_memory_bytes=node.memory_bytes,
            devices=tuple(Device(d.uuid, d.model, free=True) for d in node.devices),
        )
        for node in pool
    )
    assert (bool(blocked) and blocked[0].hopeless) == (not fits_somehow(healed, shape))
