"""Reads files from a ``FileReader`` instead of the file system while a sample is computed.

Replaces ``open``, ``numpy.fromfile``, ``cv2.imread`` and torchvision's ``read_file``. The replacements request the bytes of a file
from the reader, and call the original function if the reader does not have them. Pillow, ``pathlib``, ``numpy.load``, ``torch.load``,
``json`` and ``gzip`` read through ``open``. ``reads_from(reader)`` sets the reader of the current thread,
``answer_everywhere(reader)`` that of all threads outside of such blocks. ``observe_writes`` registers an observer of the files that
this process changes. Python also reports files that are opened by other functions to a reader that is a ``Witness``.

``reading``  replacements of functions that read files, such as ``open``: start reading here
``writing``  replacements of functions that change files
``events``   audit hook for files that other functions open
``files``    file objects that the replaced ``open`` returns
``asking``   reader of the current thread, and path resolution
``threads``  replacements of functions that start threads, which inherit the reader of a sample
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
