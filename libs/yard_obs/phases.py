"""How long the phases of a cycle take."""

import time
from collections.abc import Callable

from yard_obs.catalogue import CYCLE_DURATION
from yard_obs.metrics import Metrics


class CyclePhases:
    """One cycle's: each `lap` is the phase that ends with it, and lasts since the one before."""

    def __init__(self, metrics: Metrics, service: str, monotonic: Callable[[], float] = time.perf_counter) -> None:
        self._histogram = metrics.histogram(CYCLE_DURATION)
        self._service = service
        self._monotonic = monotonic
        self._last = monotonic()

    def lap(self, phase: str) -> None:
        now = self._monotonic()
        self._histogram.record(now - self._last, service=self._service, phase=phase)
        self._last = now
