"""Of tiers, stage caches, the node server and what reads ahead."""

from __future__ import annotations

from prefeed.errors.base import PrefeedError

# ---------------------------------------------------------------- store


class StoreError(PrefeedError):
    """A tier could not do what was asked; the data at the origin is untouched."""

    code = "store-error"


class TierFullError(StoreError):
    """The tier's file system or budget has no room; what was stored stays."""

    code = "tier-full"


class StoreDamagedError(StoreError):
    """What a tier holds is not what was written to it: nothing of it can be used."""

    code = "store-damaged"


class StoreFormatError(StoreError):
    """The directory holds a store of another layout version, or none."""

    code = "store-format"


class ManifestDamagedError(StoreFormatError):
    """What a manifest holds is not what was written."""

    code = "manifest-damaged"


class EntryFormatError(StoreError):
    """The bytes are no entry of a stage cache, are damaged, or hold what may not be decoded."""

    code = "entry-format"


# ---------------------------------------------------------------- stages


class CannotEncodeError(PrefeedError, TypeError):
    """A sample holds something that an entry cannot hold without pickle."""

    code = "cannot-encode"


class CannotFingerprintError(PrefeedError, TypeError):
    """A stage holds something of which nobody can tell whether it is the same as last time."""

    code = "cannot-fingerprint"


class RandomStageError(PrefeedError, ValueError):
    """A stage that draws random numbers was to be cached: every epoch would see the same ones."""

    code = "random-stage"


class CacheInUseError(PrefeedError, RuntimeError):
    """One ``DatasetCache`` was given to two different pipelines."""

    code = "cache-in-use"


class CacheNotInUseError(PrefeedError, RuntimeError):
    """A ``DatasetCache`` was asked what it holds before a pipeline used it."""

    code = "cache-not-in-use"


class ResumeError(PrefeedError, ValueError):
    """A loader cannot go on from this state."""

    code = "cannot-resume"


# ---------------------------------------------------------------- reading ahead


class ForkedError(PrefeedError, RuntimeError):
    """What a thread makes was asked for in a process forked meanwhile, which has no such thread."""

    code = "forked"


# ---------------------------------------------------------------- server


class ServerError(PrefeedError):
    """The node server could not be started, reached or understood."""

    code = "server-error"


class ServerUnavailableError(ServerError, ConnectionError):
    """No server answers; readers go to the origin."""

    code = "server-unavailable"
    retryable = True


class ServerBusyError(ServerUnavailableError):
    """The server runs, and has not answered in time: it is busy, or suspended."""

    code = "server-busy"


class ServerAlreadyRunningError(ServerError):
    """Another server owns this home."""

    code = "server-already-running"


class VersionMismatchError(ServerError):
    """Client and server speak different wire versions."""

    code = "version-mismatch"


class UnsafeDirectoryError(ServerError, PermissionError):
    """A directory that must be private to the user is not."""

    code = "unsafe-directory"


class SessionNotFoundError(ServerError):
    """The server has no session, or no cache, of this number."""

    code = "session-not-found"


class SpillingDisabledError(ServerError):
    """A cache was to spill to disk on a node without a disk tier."""

    code = "spilling-disabled"
