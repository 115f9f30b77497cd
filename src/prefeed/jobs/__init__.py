"""Jobs on data sets: copy a data set, fill the cache with it, free the cache, or remove files.

``sync`` and ``rmr`` decide which files of the user are written and deleted. ``prefeed.transfer`` writes and deletes them, only below
the given roots.

``spec``      a job as a YAML document, and the resolved job: start reading here
``places``    the places of a job: URLs, paths, sample sets
``sync``      copies the objects that a destination lacks
``rmr``       removes named objects below one root
``warming``   fills the tiers, in an order
``clearing``  frees objects in the tiers
``options``   the options of a sync
``records``   the recorded jobs on disk
``running``   runs each kind of job; queues and ends recorded jobs
"""
