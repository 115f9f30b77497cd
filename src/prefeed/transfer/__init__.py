"""Lists, reads, writes and removes objects at a place, and never outside a root.

``prefeed.jobs``, ``prefeed.copying`` and ``prefeed.packing`` decide what to do; this package does it.

``places``        the interfaces of places, and their opening: start reading here
``entries``       listed objects, the rule for copies, and valid paths (pure)
``patterns``      rules that include and exclude paths (pure)
``engine``        copies many objects concurrently, into any ``Sink``
``flow``          the order, the threads and the bandwidth of copies
``rooted_dir``    changes below one open directory, and nowhere else
``ordered_walk``  lists a directory in key order
``directory``     a directory as a place, and the sink that writes files there
``store``         a place in an object store, or on a web server
``ordering``      sorts other listings on disk
``mounted``       the mounts that a listing met, now and in the last run
"""
