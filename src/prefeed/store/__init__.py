"""Tiers: where cached values lie on this node. Start with ``tier``; ``capacity`` says how large and where.

``tier``             one LMDB store, one writer, many readers: the way in
``protocol``         what a tier is, so that a fake can stand for one
``layout``           names, page arithmetic, and what a value costs
``writer``           groups of values put and deleted, one commit each
``reader``           values seen in place by any number of processes
``values``           one value in a transaction: whole or in pieces
``parts``            parts of a value without the rest
``batches``          transactions that keep a handle open and its map in place
``environment``      the LMDB handles of this process
``opening``          how a store is opened for reading
``directory``        the directory of a store: private, locked, emptied
``node_directory``   what of a home belongs to one server
``capacity``         how much memory a tier is granted, and where
``reservation``      pages that exist before they are written
``page_prefaulter``  the next pages, made by a thread
``ballast``          pages that go back to the kernel
``sums``             checksums of residents, for the next writer
``tree``             whether LMDB's trees are whole
``meta_pages``       LMDB's meta pages, read without opening the file
``holders``          which stores other processes have open
``namespaces``       readers by the PID namespace that they are in
``foreign``          readers that are not in LMDB's table
``pins``             snapshots in which the writer stays for their sake
``shared``           a store that every process writes
``shared_files``     its files: made, grown, emptied
``shared_writer``    its commits
``checksums``        checksums beside values on disk
``read_counts``      how reads went, in all processes together
``fork_safe_file``   a file that each process opens for itself
``translation``      errors of LMDB and the system as errors of the store
"""
