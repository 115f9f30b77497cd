"""Answers reads of files by path from a ``FileReader`` while a sample is made.

``reads_from(reader)`` is in force in the thread that entered it; ``answer_everywhere(reader)`` everywhere else. ``open``,
``numpy.fromfile``, ``cv2.imread`` and torchvision's ``read_file`` ask the reader for the bytes of a file. If it does not have them,
the file itself is opened. Pillow, ``pathlib``, ``numpy.load``, ``torch.load``, ``json`` and ``gzip`` read through ``open``.
``observe_writes`` registers an observer of the files that this process changes. Results look the same as those of the
original functions. A reader that is a ``Witness`` is also told of files that Python opens by other functions.

``reading``  functions that read files, above all ``open``: start reading here
``writing``  functions that change files
``events``   files that are opened by other functions
``files``    the file objects that ``open`` returns
``asking``   the reader of this thread, and the path to ask it for
``threads``  functions that give a sample's work to threads
``scope``    installs the replacements, and restores the originals
"""

from prefeed.interception.asking import FileReader as FileReader
from prefeed.interception.asking import carrying as carrying
from prefeed.interception.events import Witness as Witness
from prefeed.interception.events import watch_opens as watch_opens
from prefeed.interception.scope import answer_everywhere as answer_everywhere
from prefeed.interception.scope import answers_everywhere as answers_everywhere
from prefeed.interception.scope import current_reader as current_reader
from prefeed.interception.scope import end_observing as end_observing
from prefeed.interception.scope import in_sample as in_sample
from prefeed.interception.scope import install as install
from prefeed.interception.scope import kept_in_place as kept_in_place
from prefeed.interception.scope import observe_writes as observe_writes
from prefeed.interception.scope import original_open as original_open
from prefeed.interception.scope import put_open_back as put_open_back
from prefeed.interception.scope import reads_from as reads_from
from prefeed.interception.scope import take_open_away as take_open_away
from prefeed.interception.scope import uninstall as uninstall
