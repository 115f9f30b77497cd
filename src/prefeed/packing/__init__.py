"""Packs many small files into few large ones, with an index.

Start with ``driver.pack``. For readers a pack is an origin (``prefeed.sources.packed``).

``driver``       packs from listing to index, and resumes
``writing``      reads objects ahead, and writes data files and the index
``order``        valid names of each format, and the order of the objects
``formats``      WebDataset's tar files and TFRecord files
``environment``  LMDB environments
``journal``      the progress on disk, for resuming after a kill
``place``        the directory or prefix of a store that holds the pack
"""
