"""Lists, reads, writes and removes objects in a directory or an object store.

``prefeed.jobs``, ``prefeed.copying`` and ``prefeed.packing`` decide which objects; this package does the I/O. Nothing outside
the root of a place is changed.

``places``        interfaces of a place and functions that open one: start here
``entries``       listed objects, the comparison of a copy with its original, valid paths (pure)
``patterns``      rules that include and exclude paths (pure)
``engine``        copies many objects concurrently into any ``Sink``
``flow``          concurrency and bandwidth limits of copies
``rooted_dir``    changes below one open directory
``ordered_walk``  lists a directory in key order
``directory``     a directory as a place, and the sink that writes files
``store``         a place in an object store or on a web server
``ordering``      sorts listings on disk
``mounted``       tracks the mounts below the places of a sync
"""
