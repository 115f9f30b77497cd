"""Jobs on data sets: copy them from place to place, fill the cache with them, free it, remove what is named.

``sync`` and ``rmr`` are all in prefeed that write to or delete at a place of the user's; they work below the roots that
they are given, and nowhere else. Start with ``places``: what a root is; ``sync``; ``spec``: a job as YAML; ``running``.
"""
