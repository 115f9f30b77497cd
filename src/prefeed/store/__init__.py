"""Tiers: where cached values lie on this node. Start with ``writer`` and ``reader``; ``capacity`` says how large and where.

``layout``           names, page arithmetic, and what a value costs
``writer``           groups of values put and deleted, one commit each
``reader``           values seen in place by any number of processes
``values``           one value in a transaction: whole, in pieces, or a part
``batches``          transactions that keep a handle open and its map in place
``environment``      the LMDB handles of this process: opened, shared, closed
``directory``        the directory of a store: private, locked, emptied
``node_directory``   what of a home belongs to one server
``capacity``         how much memory a tier is granted, and where
``reservation``      pages that exist before they are written, made ahead by a thread
``ballast``          pages that go back to the kernel
``sums``             checksums of residents, for the next writer
``tree``             LMDB's file read without LMDB: meta pages, and whether its trees are whole
``namespaces``       which processes have a store open, and in which PID namespace
``foreign``          readers that are not in LMDB's table, and what the writer keeps for them
``shared``           a store that every process writes
``shared_files``     its files: made, grown, emptied
``shared_writer``    its commits, and the checksums of values on disk
``read_counts``      how reads went, in all processes together
"""
