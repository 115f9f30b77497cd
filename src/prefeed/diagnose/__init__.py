"""Measures whether a training loop waits for data, and finds remedies: ``prefeed doctor`` and ``prefeed tune``.

Both run the same trials and return the same report.

``doctor``        examines a loop, or an unchanged program: start reading here
``tune``          tries settings of a loader within a budget
``search``        Settings, Trial (samples/s with their spread, or a failure), and the choice of the next trial (pure)
``trials``        runs the loop with a clone, and returns a Trial
``loader_clone``  LoaderClone: a copy of the user's loader with other settings, whose workers end when it is closed
``costs``         the parts of one batch
``report``        LoaderReport: verdict in words, findings with their factors, settings, all trials; text or JSON (pure)
"""
