"""How many steps are left, for all threads together."""

from __future__ import annotations

import threading


class Budget:
    """Steps to be taken, and whether a thread has failed."""

    def __init__(self, steps: int):
        self.steps, self.taken = steps, 0
        self.errors: list[BaseException] = []
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Takes a step, if one is left."""
        with self._lock:
            if self.is_spent():
                return False
            self.taken += 1
            return True

    def is_spent(self) -> bool:
        """Whether all has been taken, or a thread has failed: then all stop."""
        return self.taken >= self.steps or bool(self.errors)

    def fail(self, error: BaseException) -> None:
        """A thread has failed."""
        self.errors.append(error)
