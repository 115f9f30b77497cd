"""Benchmarks and the demo: real pictures, real servers, always beside the same job without prefeed.

``bench``       ``prefeed bench``
``cases``       the benchmarks
``demo``        ``prefeed demo``
``demo_page``   what it measured, as SVG and HTML
``training``    one training of the demo
``scripts``     training scripts that know nothing of prefeed
``harness``     runs variants in turn and sums them up
``processes``   variants in processes of their own
``loading``     one variant of a loading benchmark
``plain``       the datasets of variants without prefeed
``charts``      bar charts of their figures
``rows``        samples for benchmarks of stage caches
``photos``      the pictures
``home``        a node cache of the benchmark's own
``origin``      HTTP servers with latency
``s3_origin``   an S3 endpoint with latency
``fuse_mount``  a bucket, or a slow directory, as a mount
``slow_directory``  a directory with slow opens, which are counted
``slow_directory_server``  the process that serves its mount
``cluster``     an API server in memory
``kubelet``     pods as processes in namespaces
``memcached``   memcached servers that can be paused and killed
``errors``      a benchmark lacks something, or has failed
"""
