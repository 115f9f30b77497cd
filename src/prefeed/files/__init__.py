"""Objects of any origin as open files, for code that reads parts of objects.

``opening``     ``prefeed.open``: one object, read in blocks
``shards``      ``prefeed.shards``: objects in the order of reading, with prefetching of the next ones
``filesystem``  fsspec file system: ``prefeed://`` and ``prefeed::s3://bucket/x``
``webdataset``  scheme for WebDataset's ``gopen``: ``prefeed:s3://bucket/x``
``resuming``    ``prefeed.resumable``: WebDataset pipelines that resume in the middle of an epoch
``stages``      stages of such a pipeline, and their seeds
"""

from prefeed.files.opening import open
from prefeed.files.shards import close, shards

__all__ = ["close", "open", "shards"]
