"""The client's side of the cache: reads from the tier, asks the server after a miss, reads the origin if no server answers.

``reader``      the hit path, and what follows a miss: start reading here
``counted_reads``  counts of the reads of one reader
``files``       files that samples open by path
``block_file``  an open object, read in blocks
``block_order``  which blocks are read next, and what may be fetched for a few bytes
``row_groups``  which bytes of a Parquet file are read next
``blocks``      blocks from the tier, the server or the origin
``large_files``  files opened by path that are too large to be cached whole: parts of them, in blocks
``lending``     open files whose bytes are in the tier
``beside``      reads outside of samples (``reads = all``)
``writes``      files that this process changes
``access``      access maps: the objects of each sample
``readers``     chooses the reader for a read that names none
``object_index``  the datasets that hold objects, for reads by URL
``once``        reads of objects that need not be kept
``tiers``       the memory tiers of the servers that this process was connected to
``sharing``     the connection and the records that readers which take turns share
``in_place``    epochs that begin without the server: shared state, measured reads
``seen``        what samples opened in such epochs
``joining``     lets a loader join the server in the middle of an epoch
``dataset``     a dataset of the node, as its readers see it
``consumer``    sends plans and positions to the server
``connection``  one socket of one process
``node``        requests of commands
``untold``      epochs of loaders without a connection
``launch``      starts the node server
``ending``      ends the node server, even if it does not answer
"""
