"""Measures whether a training loop waits for data, and what helps: ``prefeed doctor`` and ``prefeed tune``.

Both run the same trials and return the same report::

    LoaderClone   a loader like the user's, with other settings; its workers end when it is closed
    Trials.run    yields the batches of a clone to the loop, and returns a
    Trial         settings -> seconds per step and samples/s with their spread, or the reason why it failed
    LoaderReport  verdict in words, findings with their factors, suggested settings, all trials; as text or JSON

``doctor`` examines a loop or an unchanged program (start here), with ``costs`` of the parts of one batch. ``tune`` tries
settings within a budget, in the order of ``search``. ``report`` concludes from trials. ``search`` and ``report`` are pure.
"""
