"""What a bench needs and this machine may lack."""

from __future__ import annotations

from prefeed.errors import PrefeedError


class MissingRequirementError(PrefeedError):
    """A program or a package that a bench needs is not installed; the message says how to install it."""

    code = "missing-requirement"


class BenchFailedError(PrefeedError):
    """A bench or the demo could not finish, or two variants saw different data."""

    code = "bench-failed"
