"""Sample sets: data sets with a name, an origin, and the tiers that cache them.

``find`` returns an applied set. ``resolve`` turns a ``sampleset://`` URL into an origin and the settings of its node server.

``records``     applied sets on disk: start reading here
``spec``        documents of kind SampleSet, with JuiceFS's mount options
``documents``   documents as structures, and the errors of wrong fields
``yaml_files``  YAML files as documents
``locations``   places in the original's notation as URLs
``tiers``       the levels of a set as tiers of a node
``names``       resolves ``sampleset://NAME/PATH``
``applying``    turns documents of kind SampleSet and Secret into records
``provision``   makes a recorded set ready, and deletes it
``status``      the present state of a set, and its settings
"""

from __future__ import annotations

from prefeed.sampleset.names import resolve
from prefeed.sampleset.records import SampleSet, find

__all__ = ["SampleSet", "find", "resolve"]
