"""Many small files in few large ones, and an index that finds them again.

Start with ``driver.pack``; ``index_existing.index_files`` indexes what other programs have packed. Reading a pack is no
matter of this room: to the rest of prefeed a pack is one more origin (``prefeed.sources.packed``).

``driver``          one packing from its start to its end
``work``            what all its steps look at
``order``           which object comes after which
``names``           names of shards and members
``journal``         what is done, after a kill too
``reading``         objects read ahead
``writing``         objects written, shard by shard
``tar_shards``      tar shards, as WebDataset reads them
``tfrecord``        TFRecord files
``example``         TensorFlow's ``Example`` messages
``environment``     LMDB environments
``records``         what writers and scanners of all formats share
``place``           a directory or a store that a pack is written to
``finishing``       the index, written last
``index_existing``  an index for packs of other programs
``verifying``       whether a pack holds what was packed
"""
