"""Jobs on data sets: copy them from place to place, fill the cache with them, free it, remove what is named.

``sync`` and ``rmr`` are all in prefeed that write to or delete at a place of the user's; they work below the roots that
they are given, and nowhere else.

``places``           what a root is: start reading here
``sync``             copies what one place has and another has not
``rmr``              removes what is named, below one root
``warming``          fills the tiers in an order
``clearing``         frees what the tiers hold
``options``          what a sync is asked to do
``patterns``         which paths a job takes
``bandwidth``        a limit of bytes per second
``entries``          two listings in key order, side by side
``ordered_walk``     a directory in key order
``ordering``         other listings, sorted on disk
``directory_place``  a directory as a place of jobs
``store_place``      a place in an object store
``rooted_dir``       changes below one open directory, and nowhere else
``mounted``          which mounts a sync met, now and the last time
``spec``             a job as YAML, and resolved: its set, its places, its options
``records``          what became of each job
``running``          what each kind of job does; jobs queued, run, ended
"""
