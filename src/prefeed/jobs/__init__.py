"""Jobs on data sets: copy them, fill the cache with them, free it, remove what is named.

``sync`` and ``rmr`` decide what is written and deleted at a place of the user's. ``prefeed.transfer`` does it, below the given
roots and nowhere else.

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
