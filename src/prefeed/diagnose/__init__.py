"""Is this job waiting for data, and what helps? Measured, not guessed.

``doctor``            whether a loop waits for data, and for what
``tune``              the fastest settings of a loader
``loader_clones``     a loader like another, with other settings
``trial_conditions``  the conditions of a trial: threads, caches, warnings
``measurement``       what was measured, as numbers
"""
