"""Whether the pending set is worth another look."""


class Look:
    """Shared by the handlers and the cycle of one service, and only a hint: `due` is True whenever in doubt.

    Looking costs reading the pool and the head of the pending set, and most of what happens (tasks starting, say)
    cannot change who fits. Set and cleared after commits only, which the store keeps in one order.
    """

    def __init__(self) -> None:
        self.due = True

    def again(self) -> None:
        self.due = True

    def done(self) -> None:
        self.due = False
