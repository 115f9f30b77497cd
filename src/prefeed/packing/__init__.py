"""Many small files in few large ones, and an index that finds them again.

Start with ``driver.pack``; ``index_existing.index_files`` indexes what other programs have packed. Reading a pack is no
matter of this room: to the rest of prefeed a pack is one more origin (``prefeed.sources.packed``).

``driver``          one packing from its start to its end, and reading all of it back
``order``           which names a format takes, and which object comes after which
``journal``         what is done, after a kill too
``writing``         objects read ahead and written, shard by shard, and the index at the end
``tar_shards``      tar shards, as WebDataset reads them
``tfrecord``        TFRecord files, and TensorFlow's ``Example`` messages in them
``environment``     LMDB environments
``records``         what writers and scanners of all formats share
``place``           a directory or a store that a pack is written to
``index_existing``  an index for packs of other programs
"""
