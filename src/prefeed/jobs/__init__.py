"""Jobs on data sets: copy them from place to place, fill the cache with them, free it, remove what is named.

``sync`` and ``rmr`` decide what is written to and deleted at a place of the user's. What does it is in ``prefeed.transfer``; it works
below the roots that it is given, and nowhere else.

``places``    the places of a job, as they are named: start reading here
``sync``      copies what one place has and another has not
``rmr``       removes what is named, below one root
``warming``   fills the tiers in an order
``clearing``  frees what the tiers hold
``options``   what a sync is asked to do
``spec``      a job as YAML, and resolved: its set, its places, its options
``records``   what became of each job
``running``   what each kind of job does; jobs queued, run, ended
"""
