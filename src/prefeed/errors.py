"""Errors: one tree of picklable exceptions, each with a stable code.

A message states the failure, the values, and a remedy. An error that corresponds to one of Python's own also derives from that
built-in, so that ``except FileNotFoundError`` in a training script still works.
"""

from __future__ import annotations

import errno
from typing import Any, TypeVar


class PrefeedError(Exception):
    """Base class of all errors of prefeed.

    Attributes:
        code: Stable identifier for programs, kebab-case.
        retryable: True if the same call may succeed later without a change.
        details: Values for programs: paths, sizes, limits.
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
    """Create the error that another process sent, of ``root`` or the subclass of it with this code.

    An unknown code gives a ``root``.
    """
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
    """The origin refused a request or did not respond."""

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
    """The origin was listed and has no matching object."""

    code = "empty-listing"


class CredentialsError(AccessDeniedError):
    """The credentials file is readable by other users, is damaged, or names a variable that is not set."""

    code = "bad-credentials"


class PassedThroughError(SourceError):
    """The file is not cached because it is too large or not a regular file. The reader opens the file itself."""

    code = "passed-through"


class CannotListError(SourceError):
    """The origin cannot be listed and has no index file."""

    code = "cannot-list"


class ObjectChangedError(SourceError, OSError):
    """An object changed while it was read in parts. ``errno`` is ``ESTALE``."""

    code = "object-changed"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message, **details)
        self.errno = errno.ESTALE


class TransientSourceError(SourceError, OSError):
    """A connection failed, timed out or was interrupted. A retry may succeed."""

    code = "source-transient"
    retryable = True


class ThrottledError(TransientSourceError):
    """The origin limits the rate of requests (429, 503 SlowDown)."""

    code = "source-throttled"


class TruncatedBodyError(TransientSourceError):
    """The origin sent a body whose length differs from the announced one."""

    code = "truncated-body"


class WrongAnswerError(TruncatedBodyError):
    """The origin sent a body whose length differs from the listing, although the version is the same: for example a login page."""

    code = "wrong-answer"


class DeclarationError(PrefeedError, ValueError):
    """``train_data_list`` or ``prefeed_paths`` of a dataset returned a value of the wrong form."""

    code = "declaration"


class BadListError(PrefeedError, ValueError):
    """A list of samples has a line without a path and a label. Nothing was read."""

    code = "bad-list"


class FilesUnknownError(PrefeedError):
    """The files that a dataset's samples open are unknown and cannot be learned."""

    code = "files-unknown"


# ---------------------------------------------------------------- packs


class PackError(PrefeedError):
    """Packing failed. The origin is unchanged, and finished shards are kept."""

    code = "pack-error"


class CannotPackError(PackError, ValueError):
    """The format does not support the names of the files, or the options contradict each other."""

    code = "cannot-pack"


class PackOccupiedError(PackError, FileExistsError):
    """The directory of the pack contains other files, or another process is packing there."""

    code = "pack-occupied"


class PackFullError(PackError, OSError):
    """The file system of the pack is full."""

    code = "pack-full"


class PackSourceChangedError(PackError):
    """A file changed after the listing. The same command lists again and resumes."""

    code = "pack-source-changed"
    retryable = True


# ---------------------------------------------------------------- store


class StoreError(PrefeedError):
    """An operation on a tier failed. The data at the origin is unchanged."""

    code = "store-error"


class TierFullError(StoreError):
    """The tier's budget is exhausted or its file system is full. Stored entries are kept."""

    code = "tier-full"


class StoreDamagedError(StoreError):
    """The contents of a tier differ from the data that was written. Nothing in the tier is used."""

    code = "store-damaged"


class StoreFormatError(StoreError):
    """The directory contains no store, or one of another format version."""

    code = "store-format"


class ManifestDamagedError(StoreFormatError):
    """The contents of a manifest do not match their checksums."""

    code = "manifest-damaged"


class EntryFormatError(StoreError):
    """The bytes are not an entry of a stage cache, are damaged, or name a class that does not exist."""

    code = "entry-format"


# ---------------------------------------------------------------- stages


class CannotEncodeError(PrefeedError, TypeError):
    """A sample cannot be pickled, so a stage cache cannot keep it."""

    code = "cannot-encode"


class CannotFingerprintError(PrefeedError, TypeError):
    """A stage contains a value without a stable identity, so that a change would not be noticed."""

    code = "cannot-fingerprint"


class RandomStageError(PrefeedError, ValueError):
    """A stage that draws random numbers cannot be cached, because every epoch would see the same ones."""

    code = "random-stage"


class CacheInUseError(PrefeedError, RuntimeError):
    """One ``DatasetCache`` was given to two different pipelines."""

    code = "cache-in-use"


class CacheNotInUseError(PrefeedError, RuntimeError):
    """The contents of a ``DatasetCache`` were requested before a pipeline used it."""

    code = "cache-not-in-use"


class ResumeError(PrefeedError, ValueError):
    """A loader cannot resume from this state."""

    code = "cannot-resume"


# ---------------------------------------------------------------- reading ahead


class ForkedError(PrefeedError, RuntimeError):
    """An iterator with a background thread was used in a forked process, which does not have that thread."""

    code = "forked"


# ---------------------------------------------------------------- server


class ServerError(PrefeedError):
    """The node server could not be started or reached, or sent an unexpected reply."""

    code = "server-error"


class ServerUnavailableError(ServerError, ConnectionError):
    """No node server responds. Readers use the origin."""

    code = "server-unavailable"
    retryable = True


class ServerBusyError(ServerUnavailableError):
    """The node server exists but did not respond in time, because it is busy or suspended."""

    code = "server-busy"


class ServerAlreadyRunningError(ServerError):
    """Another server owns this home."""

    code = "server-already-running"


class VersionMismatchError(ServerError):
    """Client and server use different versions of the protocol."""

    code = "version-mismatch"


class UnsafeDirectoryError(ServerError, PermissionError):
    """A directory that must be private to the user is not."""

    code = "unsafe-directory"


class SessionNotFoundError(ServerError):
    """The server has no session or cache with this number."""

    code = "session-not-found"


class SpillingDisabledError(ServerError):
    """A cache with spilling was requested on a node without a disk tier."""

    code = "spilling-disabled"


# ---------------------------------------------------------------- copies of data sets


class CopyError(PrefeedError):
    """A local copy of a data set cannot be created or removed. Existing files are kept."""

    code = "copy-error"


class TargetFullError(CopyError):
    """The file system of a copy is full."""

    code = "target-full"


class BadTargetNameError(CopyError):
    """The name of an object is not a valid file name."""

    code = "bad-target-name"


class DoesNotFitError(CopyError):
    """A data set is larger than the space for its copy, and a partial copy is not possible."""

    code = "does-not-fit"


class NotACopyError(CopyError, ValueError):
    """The path to remove is not a copy that prefeed created."""

    code = "not-a-copy"


class CopyInUseError(CopyError):
    """Another process is using this copy."""

    code = "copy-in-use"
    retryable = True


# ---------------------------------------------------------------- sample sets


class SampleSetError(PrefeedError):
    """A sample set cannot be applied, found, used or deleted. Its origin is unchanged."""

    code = "sample-set-error"


class SpecError(SampleSetError, ValueError):
    """A document of kind SampleSet, SampleJob or Secret is invalid or refers to something that does not exist."""

    code = "bad-spec"


class SampleSetNotFoundError(SampleSetError):
    """No sample set with this name exists."""

    code = "sample-set-not-found"


class CannotChangeError(SampleSetError):
    """A document changes a field that is immutable for an existing sample set."""

    code = "cannot-change"


class SampleSetInUseError(SampleSetError):
    """Jobs of the sample set are running."""

    code = "sample-set-in-use"
    retryable = True


# ---------------------------------------------------------------- jobs


class JobError(PrefeedError):
    """A job on a data set failed. The message lists everything that was left unchanged."""

    code = "job-error"


class JobSpecError(JobError, ValueError):
    """A job is invalid or not permitted. Nothing was done."""

    code = "job-spec"


class JobNotFoundError(JobError):
    """No job with this name exists."""

    code = "job-not-found"


class JobConflictError(JobError):
    """The job conflicts with another job or with its own current state."""

    code = "job-conflict"


# ---------------------------------------------------------------- mounts


class MountError(PrefeedError):
    """A mount or unmount failed. The message states the cause."""

    code = "mount"


# ---------------------------------------------------------------- pictures


class ClusterError(PrefeedError):
    """The API server of a cluster refused a request or did not respond. ``details["status"]`` is the HTTP status, or 0."""

    code = "cluster"
    retryable = True


class ImageDecodeError(PrefeedError, OSError):
    """The bytes are not an image, or the image is truncated or damaged."""

    code = "image-decode"


# ---------------------------------------------------------------- advice


class CannotExamineError(PrefeedError):
    """A training loop could not be examined. It was not changed."""

    code = "cannot-examine"
