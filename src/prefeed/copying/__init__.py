"""Local copies of data sets, in memory or on a fast disk: ``prefeed stage``. ``prefeed.transfer`` copies the files.

``staging``  makes or updates a copy: start reading here
``copies``   existing copies: places, records, locks, removal
``space``    how many bytes a copy may take, and which objects it gets
"""
