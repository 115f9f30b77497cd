"""Benchmarks and the demo: real pictures, real servers, always beside the same job without prefeed.

``bench``         ``prefeed bench``
``cases``         one module per benchmark
``demo``          ``prefeed demo``
``scripts``       training scripts that know nothing of prefeed
``harness``       runs variants in turn and sums them up
``child``         one variant in a process of its own
``loading``       one variant of a loading benchmark
``plain``         the datasets of variants without prefeed
``program``       runs one of the scripts, with and without ``prefeed run``
``phases``        a process that does its job when it is told to
``fleet``         one node of several that train together
``sharing``       several processes that share stage caches
``rows``          samples for benchmarks of stage caches
``hits``          reads of warm rows, in turn with plain copies
``ceiling``       what a loader brings when its samples are there already
``preparing``     ways from an encoded picture to a network's input
``photos``        the pictures
``photo_bucket``  the pictures as an S3 bucket
``home``          a node cache of the benchmark's own
``origin``        HTTP servers with latency
``s3_origin``     an S3 endpoint with latency
``file_server``   a small HTTP file server that counts
``fuse_mount``    rclone's mount of a bucket
``memcached``     memcached servers that can be paused and killed
``requirements``  what a benchmark needs and this machine may lack
``signals``       clean-up on SIGTERM
``charts``        bar charts of relative times
"""
