"""The exceptions of the package."""

from __future__ import annotations


class KvCacheError(ValueError):
    """What was refused, in one line with its numbers. A refused call has written nothing.

    `kind` is the stable name of the rule that was broken, in snake case: "kvlen_mismatch", "read_only" and so on.
    """

    kind: str

    def __init__(self, message: str = "", kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class ManagerError(KvCacheError):
    """An operation that was refused. Nothing has changed, but for what `kind` "memory" and "lost" say.

    `kind` is the stable name of the reason, in snake case: "unknown_seq", "step_open", "out_of_pages" and so on.
    `details` has its numbers by name: {"need": 3, "free": 1}.
    """

    details: dict[str, object]

    def __init__(self, message: str = "", kind: str = "", details: dict[str, object] | None = None) -> None:
        super().__init__(message, kind)
        self.details = {} if details is None else details


class CapacityError(ManagerError):
    """There is no room: too few free pages ("out_of_pages"), or no neighboring free slots ("no_slot")."""
