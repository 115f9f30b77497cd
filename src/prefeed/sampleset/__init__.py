"""Sample sets: data sets with a name, where they come from, and the tiers they are cached in.

``find`` returns what was applied, and ``resolve`` turns a ``sampleset://`` URL into an origin and the settings of the node that
caches it. Inside, start with ``records``; ``spec`` reads documents of kind SampleSet, ``secrets`` those of kind Secret;
``applying`` → ``provision`` → ``status`` is the life of a set, ``phases`` its states.
"""

from __future__ import annotations

from prefeed.sampleset.names import resolve
from prefeed.sampleset.records import SampleSet, find

__all__ = ["SampleSet", "find", "resolve"]
