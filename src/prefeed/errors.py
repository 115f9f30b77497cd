"""Every error that prefeed raises: one tree, picklable, each with a stable code.

A message says what happened, how much, and what to change. Errors that stand for one of Python's own are
also that built-in, so that ``except FileNotFoundError`` in a training script still works.
"""

from __future__ import annotations

import errno
from typing import Any, TypeVar


class PrefeedError(Exception):
    """Root of the tree.

    Attributes:
        code: Stable identifier for programs, kebab-case.
        retryable: True when the same call may succeed later without a change.
        details: What a program may want to know: paths, sizes, limits.
    """

    code = "prefeed-error"
    retryable = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.details))


def _rebuild(cls: type[PrefeedError], message: str, details: dict[str, Any]) -> PrefeedError:
    return cls(message, **details)


Error = TypeVar("Error", bound=PrefeedError)


def error_of(code: str, text: str, root: type[Error]) -> Error:
    """Return the error at or below ``root`` that has this code, as another process sent it; ``root`` where none has it."""
    waiting = [root]
    for cls in waiting:
        if cls.code == code:
            return cls(text)
        waiting += cls.__subclasses__()
    return root(text)


class ConfigError(PrefeedError, ValueError):
    """A setting has a value that cannot be used."""

    code = "bad-setting"


# ---------------------------------------------------------------- origin


class SourceError(PrefeedError):
    """The origin said no, or nothing."""

    code = "source-error"


class UnknownSchemeError(SourceError, ValueError):
    """The URL names a scheme that no source reads."""

    code = "unknown-scheme"


class ObjectNotFoundError(SourceError, FileNotFoundError):
    """The origin has no such object, directory or bucket."""

    code = "object-not-found"


class AccessDeniedError(SourceError, PermissionError):
    """The origin refused the credentials, or had none."""

    code = "access-denied"


class EmptyListingError(SourceError, FileNotFoundError):
    """The origin lists, and there is nothing in it that matches."""

    code = "empty-listing"


class CredentialsError(AccessDeniedError):
    """Credentials cannot be used: others may read their file, it is damaged, or a variable that it names is not set."""

    code = "bad-credentials"


class PassedThroughError(SourceError):
    """The file is not for the cache: too large, or no regular file; who wants it opens it."""

    code = "passed-through"


class CannotListError(SourceError):
    """The origin has no listing: an index file is needed."""

    code = "cannot-list"


class ObjectChangedError(SourceError, OSError):
    """An object that is read in parts is of another version than when it was opened; its ``errno`` is ``ESTALE``."""

    code = "object-changed"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, **details)
        self.errno = errno.ESTALE


class TransientSourceError(SourceError, OSError):
    """A connection failed, timed out or broke off; the next try may succeed."""

    code = "source-transient"
    retryable = True


class ThrottledError(TransientSourceError):
    """The origin asked for fewer requests (429, 503 SlowDown)."""

    code = "source-throttled"


class TruncatedBodyError(TransientSourceError):
    """The origin sent another number of bytes than it announced."""

    code = "truncated-body"


class WrongAnswerError(TruncatedBodyError):
    """The origin sent another number of bytes than it lists, and does not say that the object changed: a login page, say."""

    code = "wrong-answer"


class DeclarationError(PrefeedError, ValueError):
    """What a dataset says of its files, by ``train_data_list`` or ``prefeed_paths``, is not understood."""

    code = "declaration"


class BadListError(PrefeedError, ValueError):
    """A list of samples has a line that is no path and label; nothing was read."""

    code = "bad-list"


class FilesUnknownError(PrefeedError):
    """Nothing is known about the files that a dataset's samples open, and nothing can be learned."""

    code = "files-unknown"


# ---------------------------------------------------------------- packs


class PackError(PrefeedError):
    """Files could not be packed; the origin is untouched, and what is packed already stays."""

    code = "pack-error"


class CannotPackError(PackError, ValueError):
    """What was asked for cannot be packed: names that a format does not take, options that do not fit."""

    code = "cannot-pack"


class PackOccupiedError(PackError, FileExistsError):
    """The directory of the pack holds something else, or another process packs into it."""

    code = "pack-occupied"


class PackFullError(PackError, OSError):
    """The file system of the pack has no room."""

    code = "pack-full"


class PackSourceChangedError(PackError):
    """A file changed after it was listed; the same command lists again and resumes."""

    code = "pack-source-changed"
    retryable = True


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
    """A stage holds something that may not be the same as last time."""

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
    """A loader cannot resume from this state."""

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


# ---------------------------------------------------------------- copies of data sets


class CopyError(PrefeedError):
    """A local copy of a data set cannot be made or removed; what is there stays."""

    code = "copy-error"


class TargetFullError(CopyError):
    """The place of a copy has no room for more."""

    code = "target-full"


class BadTargetNameError(CopyError):
    """An object has a name that no file of the copy can have."""

    code = "bad-target-name"


class DoesNotFitError(CopyError):
    """A data set is larger than the room for its copy, and there can be no copy of a part of it."""

    code = "does-not-fit"


class NotACopyError(CopyError, ValueError):
    """A path was to be removed that no copy made by prefeed is at."""

    code = "not-a-copy"


class CopyInUseError(CopyError):
    """Another process works at this copy."""

    code = "copy-in-use"
    retryable = True


# ---------------------------------------------------------------- sample sets


class SampleSetError(PrefeedError):
    """A sample set cannot be applied, found, used or deleted; its origin is untouched."""

    code = "sample-set-error"


class SpecError(SampleSetError, ValueError):
    """A document of kind SampleSet, SampleJob or Secret is not understood, or asks for what there is not."""

    code = "bad-spec"


class SampleSetNotFoundError(SampleSetError):
    """No sample set of this name was applied."""

    code = "sample-set-not-found"


class CannotChangeError(SampleSetError):
    """A document applied again differs in what a sample set keeps for its life."""

    code = "cannot-change"


class SampleSetInUseError(SampleSetError):
    """Jobs of the sample set run."""

    code = "sample-set-in-use"
    retryable = True


# ---------------------------------------------------------------- jobs


class JobError(PrefeedError):
    """A job on a data set could not be done; the message says what is as it was."""

    code = "job-error"


class JobSpecError(JobError, ValueError):
    """A job was not understood, or asks for what a job may not do; nothing was done."""

    code = "job-spec"


class JobNotFoundError(JobError):
    """There is no job of this name."""

    code = "job-not-found"


class JobConflictError(JobError):
    """Another job, or another state of this one, stands in the way."""

    code = "job-conflict"


# ---------------------------------------------------------------- mounts


class MountError(PrefeedError):
    """Nothing could be mounted or unmounted; the message says what stands in the way."""

    code = "mount"


# ---------------------------------------------------------------- pictures


class ClusterError(PrefeedError):
    """The API server of a cluster refused a request, or does not answer; ``details`` has ``status``, of HTTP, or 0."""

    code = "cluster"
    retryable = True


class ImageDecodeError(PrefeedError, OSError):
    """Bytes that are no picture, or a truncated or damaged one."""

    code = "image-decode"


# ---------------------------------------------------------------- advice


class CannotExamineError(PrefeedError):
    """A training loop could not be examined; nothing of it was changed."""

    code = "cannot-examine"
