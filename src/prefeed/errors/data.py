"""Of copies, sample sets and jobs, and of looking at data."""

from __future__ import annotations

from prefeed.errors.base import PrefeedError

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


# ---------------------------------------------------------------- pictures


class ImageDecodeError(PrefeedError, OSError):
    """Bytes that are no picture, or a truncated or damaged one."""

    code = "image-decode"


# ---------------------------------------------------------------- advice


class CannotExamineError(PrefeedError):
    """A training loop could not be examined; nothing of it was changed."""

    code = "cannot-examine"
