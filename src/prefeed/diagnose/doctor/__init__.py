"""``prefeed doctor``: whether a training loop waits for data, for which step, and what to do about it.

``examination``   ``prefeed.doctor``: the loop's own steps, with batches that are made in different ways
``script``        the same for an unchanged program
``counting``      what the cache of a trial did, over time
``sample_costs``  the cost of making a sample
``jpegs``         the gain of faster preprocessing, on the job's own images
``verdict``       cures, doubts, and the answer in words (pure)
"""
