"""Sample sets: data sets with a name, where they come from, and the tiers they are cached in.

``find`` returns what was applied, and ``resolve`` turns a ``sampleset://`` URL into an origin and the settings of the node that
caches it.

``records``      what was applied, on disk: start reading here
``spec``         documents of kind SampleSet
``secrets``      documents of kind Secret
``yaml_fields``  fields taken one by one; what nobody took is an error
``locations``    from a place as the original writes it to a URL
``options``      what JuiceFS's mount options mean here
``tiers``        from levels of a set to tiers of a node
``explaining``   what each field was mapped to, or why it has no effect
``names``        what ``sampleset://NAME/PATH`` stands for
``applying``     documents become records
``provision``    a record becomes a set that is ready
``status``       what a set is doing now
``phases``       in which phase it is (pure)
"""

from __future__ import annotations

from prefeed.sampleset.names import resolve
from prefeed.sampleset.records import SampleSet, find

__all__ = ["SampleSet", "find", "resolve"]
