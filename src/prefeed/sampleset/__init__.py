"""Sample sets: data sets with a name, where they come from, and the tiers they are cached in.

``find`` returns what was applied, and ``resolve`` turns a ``sampleset://`` URL into an origin and the settings of the node that
caches it.

``records``     what was applied, on disk: start reading here
``spec``        documents of kind SampleSet, with JuiceFS's mount options
``documents``   documents to structures, and what is said of a field that is wrong
``yaml_files``  YAML to documents
``locations``   from a place as the original writes it to a URL
``tiers``       from levels of a set to tiers of a node
``names``       what ``sampleset://NAME/PATH`` stands for
``applying``    documents, those of kind Secret too, become records
``provision``   a record becomes a set that is ready
``status``      what a set is doing now, and what its document was mapped to
"""

from __future__ import annotations

from prefeed.sampleset.names import resolve
from prefeed.sampleset.records import SampleSet, find

__all__ = ["SampleSet", "find", "resolve"]
