"""Mounts an origin as a read-only file system (``prefeed mount``), for programs in any language.

::

    program ─open, read→ kernel ─/dev/fuse→ daemon ─→ tier, node server or origin
                            │                  ↑ restarted after a crash
                            │               holder: keeps the device, unmounts at the end
                            └─→ file on this machine: read by the kernel alone (passthrough)

``starting``  checks a mount point, starts the holder, unmounts: start here
``request``   parameters of a mount, passed between the processes
``holder``    process that mounts, restarts the daemon, and unmounts
``daemon``    threads that take requests from the kernel
``polling``   duration of busy polling (pure)
``service``   answers one request
``tree``      directories and files of a manifest as numbered nodes (pure)
``objects``   reads small objects, for many threads
``large``     reads large objects in blocks through the node server
``pieces``    reads large objects from the origin without a server
``backing``   large files that the kernel reads itself
``versions``  versions of unversioned objects, for the next daemon
``order``     predicts the next reads of a process group (pure)
``ahead``     sends these predictions to the node server
"""

from prefeed.mount.starting import MountHandle, start_mount, stop_mount

__all__ = ["MountHandle", "start_mount", "stop_mount"]
