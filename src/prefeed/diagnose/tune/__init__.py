"""``prefeed tune``: measured trials of a loader's settings, and the line to paste.

``tuning``  ``prefeed.tune``
``search``  the settings, which of them to try next, and how much faster they are (pure)
``trials``  the runs, and the memory that each would take
``report``  the result in words (pure)
"""
