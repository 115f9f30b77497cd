"""Objects of any origin as open files, for code that reads parts of them.

``opening``     ``prefeed.open``: one object, read in blocks
``shards``      ``prefeed.shards``: objects in the order in which they are read, the next ones fetched ahead
``filesystem``  the same for fsspec: ``prefeed://`` and ``prefeed::s3://bucket/x``
``webdataset``  the same for WebDataset's ``gopen``: ``prefeed:s3://bucket/x``
``resuming``    ``prefeed.resumable``: WebDataset pipelines that resume in the middle of an epoch
``stages``      the stages of such a pipeline: which may be repeated, and with which seeds
"""

from prefeed.files.opening import open
from prefeed.files.shards import close, shards

__all__ = ["close", "open", "shards"]
