"""The kernel's FUSE protocol, spoken without libfuse: bytes, and the device that they go through. Nothing here knows of caches.

``wire``    requests and answers as bytes, pure
``device``  mounts, unmounts and the open device between the kernel and this process
"""
