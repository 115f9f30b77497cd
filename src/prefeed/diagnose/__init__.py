"""Is this job waiting for data, and what helps? Measured, not guessed.

``doctor``            ``prefeed.doctor``: a loader and a step, examined
``script``            the same for a program
``examination``       the loop's own steps, with batches that are made in different ways
``loader_clones``     a loader like another, with other settings
``repeating``         one batch again and again: what the device takes
``sample_costs``      what making a sample takes
``jpegs``             what leaner preprocessing saves on a job's own pictures
``measurement``       what was measured, as numbers
``cures``             what helps, and how much (pure)
``doubts``            where figures contradict each other (pure)
``verdict``           the answer in words (pure)
``tuning``            ``prefeed.tune``
``tuning_plan``       what to try next (pure)
``tuning_settings``   the settings that are tried (pure)
``tuning_ratio``      how many times as fast, from pairs of timings (pure)
``tuning_report``     what was found, in words (pure)
``tuning_memory``     what a run would take of memory
``trials``            the runs
``trial_conditions``  what holds while a trial runs
"""
