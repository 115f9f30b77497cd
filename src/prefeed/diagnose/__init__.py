"""Is this job waiting for data, and what helps? Measured, not guessed.

``doctor``         whether a loop waits for data, and for what
``tune``           the fastest settings of a loader
``loader_clones``  loaders like the user's, and the conditions under which they run
``measurement``    what was measured, as numbers
"""
