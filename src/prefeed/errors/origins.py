"""Of origins, and of what is packed or listed there."""

from __future__ import annotations

from prefeed.errors.base import PrefeedError

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
    """A file changed after it was listed; the same command lists again and goes on."""

    code = "pack-source-changed"
    retryable = True
