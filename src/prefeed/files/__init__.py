"""Objects of any origin as open files, for code that reads parts of them.

``opening``     ``prefeed.open``: one object, read in blocks
``filesystem``  the same for fsspec: ``prefeed://`` and ``prefeed::s3://bucket/x``
``webdataset``  the same for WebDataset's ``gopen``: ``prefeed:s3://bucket/x``
"""

from prefeed.files.opening import close, open

__all__ = ["close", "open"]
