"""Tiers: cached values on this node. ``capacity`` decides size and place.

A log of entries, which objects on disk use:

``log``             reads a tier, and writes it
``index``           the table from keys to places
``segment``         appends and frees entries
``files``           the files of a tier on disk

LMDB, which the memory tier and stage caches use. Start with ``writer`` and ``reader``:

``layout``          names, page arithmetic, and the cost of a value (pure)
``writer``          puts and deletes values of the memory tier, one commit per group
``reader``          reads the memory tier, in any number of processes
``values``          one value in a transaction: whole, in pieces, or a part
``batches``         the read half of every store: transactions, open handles, the map
``environment``     the LMDB handles of this process: opened, shared, closed
``directory``       the directory of a store: private, locked, emptied
``node_directory``  the directory of one server in a shared home
``capacity``        how much memory a tier gets, and where
``reservation``     allocates pages ahead of writes, in a thread
``ballast``         returns pages to the kernel
``sums``            checksums of residents, for the next writer
``entry_sums``      the checksum of one value
``tree``            checks LMDB's file without LMDB: meta pages and trees
``namespaces``      the processes that have a store open, and their PID namespaces
``foreign``         readers in other PID namespaces than LMDB's table
``shared``          a store that every process writes
``shared_files``    its files: created, grown, emptied
``shared_writer``   its commits, and the checksums of values on disk
``read_counts``     counts of reads, of all processes together
"""
