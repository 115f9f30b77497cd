"""Reads of files by path, answered by a ``FileReader`` while a sample is made.

``reads_from(reader)`` is in force in the thread that entered it, and there alone; ``answer_everywhere(reader)`` wherever that
is not: ``open``, ``numpy.fromfile``, ``cv2.imread`` and torchvision's ``read_file`` ask the reader for the file's bytes, and
what it does not have is opened as if nothing were between. The rest (Pillow, ``pathlib``, ``numpy.load``, ``torch.load``,
``json``, ``gzip``) reads through ``open``. Who observes writes (``observe_writes``) is told of the files that this process
changes. Nobody who does not look for it can tell what a caller gets from the real thing. A reader that is a ``Witness`` also
hears of files that Python opens past these.

``reading``  functions that read files, ``open`` first of all: start reading here
``writing``  functions that change files
``events``   files that are opened past all of these
``files``    the file objects that ``open`` returns
``asking``   who is asked in this thread, for what, and by which path
``scope``    when replacements are in place, where they are put, and how everything is put back
"""

from prefeed.interception.asking import FileReader as FileReader
from prefeed.interception.events import Witness as Witness
from prefeed.interception.events import watch_opens as watch_opens
from prefeed.interception.scope import answer_everywhere as answer_everywhere
from prefeed.interception.scope import current_reader as current_reader
from prefeed.interception.scope import end_observing as end_observing
from prefeed.interception.scope import install as install
from prefeed.interception.scope import observe_writes as observe_writes
from prefeed.interception.scope import reads_from as reads_from
from prefeed.interception.scope import uninstall as uninstall
