"""Many small files in few large ones, with an index.

Start with ``driver.pack``. ``index_existing.index_files`` indexes packs of other programs. For readers a pack is an origin
(``prefeed.sources.packed``).

``driver``          packs from listing to index, resumes, and verifies a pack
``writing``         reads objects ahead, and writes data files and the index
``order``           valid names of each format, and the order of the objects
``formats``         WebDataset's tar files and TFRecord files
``environment``     LMDB environments
``journal``         the progress on disk, for resuming after a kill
``place``           the directory or prefix of a store that holds the pack
``index_existing``  an index for packs of other programs
"""
