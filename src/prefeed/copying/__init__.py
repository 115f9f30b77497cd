"""Local copies of data sets: in memory, or on a fast disk. What copies is in ``prefeed.transfer``.

``staging``  makes or renews a copy: start reading here
``copies``   copies that were made: where they lie, who works at one, finding and removing them
``room``     how many bytes a copy may take, and which objects get one when there is no room for all
"""
