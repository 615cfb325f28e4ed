"""What a field means for the identity of a run."""

from __future__ import annotations


class Role:
    """How a field takes part in the fingerprint and in the resume contract.

    Arguments:
        name: `"identity"`, `"budget"` or `"runtime"`.
        meaning: one sentence for help texts and reports.
    """

    __slots__ = ("meaning", "name")

    def __init__(self, name: str, meaning: str) -> None:
        self.name = name
        self.meaning = meaning

    def __repr__(self) -> str:
        return self.name.upper()

    def __reduce__(self) -> str:
        # Roles are compared by identity, so a copy must be the same object.
        return self.name.upper()


IDENTITY = Role("identity", "part of what is learned: in the fingerprint, must match on resume")
BUDGET = Role("budget", "how long: outside the fingerprint, may grow on resume and is recorded")
RUNTIME = Role("runtime", "where and how: never in the fingerprint, free to change")
