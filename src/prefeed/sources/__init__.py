"""Origins and their listings: POSIX directories, object stores, HTTP servers, and manifests on disk.

Start with ``urls.open_source`` (a URL becomes a ``Source``) and ``library.ManifestLibrary`` (a URL becomes a
``Manifest``). Nothing here retries or caches objects: one call is one request, and its failure is one error.
"""
