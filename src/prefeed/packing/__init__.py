"""Many small files in few large ones, with an index.

Start with ``driver.pack``. ``index_existing.index_files`` indexes packs of other programs. Reading a pack is not done here: for
the rest of prefeed a pack is an origin (``prefeed.sources.packed``).

``driver``          one packing from start to end, and the check of all written bytes
``order``           valid names of each format, and the order of the objects
``journal``         the progress on disk, for resuming after a kill
``writing``         reads objects ahead and writes shards, then the index
``tar_shards``      tar shards in WebDataset's layout
``tfrecord``        TFRecord files, with TensorFlow's ``Example`` messages
``environment``     LMDB environments
``records``         what writers and scanners of all formats share
``place``           the directory or store that a pack is written to
``index_existing``  an index for packs of other programs
"""
