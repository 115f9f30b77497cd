"""Tiers: cached values on this node, each tier a log of entries. Start with ``log``.

``segment``         appends and frees entries
``index``           the table from keys to places
``log``             reads a tier, and writes it
``memory``          the files of a tier in memory, which have no names
``files``           the files of a tier on disk
``shared``          a log that every process writes: the entries of one stage cache
``shared_files``    its files: made, measured, trimmed
``read_counts``     counts of reads of a stage cache, of all processes together
``directory``       directories of tiers: private, measured
``node_directory``  the directory of one server in a shared home
``capacity``        how much memory the tier and the caches get
"""
