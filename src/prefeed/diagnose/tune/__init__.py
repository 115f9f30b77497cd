"""``prefeed tune``: measured trials of a loader's settings, and the line to paste.

``tuning``  ``prefeed.tune``: start reading here
``search``  the settings, the next one to try, and the gain of each (pure)
``trials``  runs of the loop, and the memory that each one needs
``report``  the result in words (pure)
"""
