"""The kernel's FUSE protocol, without libfuse and independent of caches.

``wire``    requests and replies as bytes, pure
``device``  mounts, unmounts and the open device between the kernel and this process
"""
