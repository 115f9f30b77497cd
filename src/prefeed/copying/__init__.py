"""Local copies of data sets: in memory, or on a fast disk.

``staging``     makes or renews a copy: start reading here
``unstaging``   removes one
``runs``        one run of ``prefeed stage`` as values
``survey``      the two listings that a run compares
``choice``      which objects are copied when there is no room for all (pure)
``comparison``  what has to be done so that a directory becomes a copy (pure)
``room``        whether they fit
``engine``      many objects copied at once, into any ``Sink``
``flow``        which object is begun when, by which thread
``bodies``      the bytes of one object: small ones whole, large ones in pieces
``directory``   a sink that is a directory
``names``       names that a directory can have
``versions``    how a copied file remembers what it is a copy of (pure)
``records``     where copies lie, and what they are of
``holding``     one process at a time works at a copy
"""
