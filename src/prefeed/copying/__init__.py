"""Stages local copies of data sets, in memory or on a fast disk, for ``prefeed stage``.

``staging``  creates or updates a copy: start here
``copies``   finds, locks and removes existing copies
``space``    limits the size of a copy and selects its objects
"""
