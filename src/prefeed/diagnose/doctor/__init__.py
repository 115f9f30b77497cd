"""``prefeed doctor``: whether a training loop waits for data, for what, and what to do about it.

``examination``   ``prefeed.doctor``: the loop's own steps, with batches that are made in different ways
``script``        the same for a program that was not changed
``sample_costs``  the cost of making a sample
``jpegs``         what leaner preprocessing saves on a job's own pictures
``verdict``       cures, doubts, and the answer in words (pure)
"""
