"""``prefeed mount``: an origin as a read-only file system, for programs in any language.

::

    program ─open, read→ kernel ─/dev/fuse→ daemon ─→ tier, or the node server, or the origin
                            │                  ↑ started again when it dies
                            │               holder: keeps the device, and takes the mount away at the end
                            └─→ file on this machine: read by the kernel alone (passthrough)

``tree``      directories and files of a manifest, as numbered nodes; pure
``objects``   bytes of small objects, for many threads
``large``     parts of large ones, in blocks through the node server
``pieces``    the same while there is no server
``seen``      versions that were not listed, for the next daemon
``order``     which objects a process group will probably read next; pure
``ahead``     tells the node server so
``backing``   large files that the kernel reads by itself
``service``   answers one request
``daemon``    threads that take requests from the kernel
``polling``   how long they poll the device before they sleep; pure
``holder``    the process that mounts, starts the daemon again, and unmounts
``request``   what is mounted, as it is handed from process to process
``starting``  checks a mount point, starts the holder, ends a mount
"""

from prefeed.mount.starting import MountHandle, start_mount, stop_mount

__all__ = ["MountHandle", "start_mount", "stop_mount"]
