"""Objects on their way from one place to another: what lists, reads, writes and removes them, and never outside of a root.

``prefeed.jobs``, ``prefeed.copying`` and ``prefeed.packing`` decide what is to be done; this package does it.

``places``        what can be listed, read, written to and removed from: start reading here
``entries``       what a listing says of each object, which file is a copy of it, and which paths can be files (pure)
``patterns``      which paths are taken (pure)
``engine``        many objects copied at once, into any ``Sink``
``flow``          which object is begun when, by which thread; a limit of bytes per second
``rooted_dir``    changes below one open directory, and nowhere else
``ordered_walk``  a directory in key order
``directory``     a directory as a place, and the sink that makes files in it
``store``         a place in an object store, or on a web server
``ordering``      other listings, sorted on disk
``mounted``       which mounts a listing met, now and the last time
"""
