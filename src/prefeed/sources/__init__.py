"""Origins and their listings: directories, object stores, HTTP servers, and manifests on disk.

Start with ``urls.open_source``, which turns a URL into a ``Source``, and ``library.ManifestLibrary``, which turns a URL into a
``Manifest``. A source neither retries nor caches: one call is one request, and its failure is one error; ``answers`` retries.

``protocol``           the interface of a source
``urls``               opens the source of a URL or a path
``posix``              files below a directory
``objectstore``        objects in S3, GCS, Azure and HTTP, through obstore
``store_listing``      listings through obstore: by prefix, by an index file, by WebDAV
``quick_fetches``      objects and parts of them over HTTP, many at a time: the client of fetch processes
``quick_heads``        heads of the answers that it takes
``tls``                settings of TLS connections
``store_clients``      clients of obstore, which sources share
``plain_web``          web servers without lengths, HEAD or ranges, and URLs with a query, by the standard library
``plain_s3``           listings and signatures for keys of S3 that obstore refuses
``listing_relay``      listings of Google and Azure without the keys that obstore refuses
``signed_urls``        queries of URLs: which parameters sign a request, and until when
``packed``             a pack as an origin
``pack_index``         the index of a pack
``blocks``             large objects as runs of blocks
``listing``            objects by dense ids, in mapped columns: the base of manifests and catalogues
``manifest``           the immutable, ordered listing of one origin, as one mapped file
``manifest_writer``    makes manifests from listings, lists and arrays
``library``            all manifests of one home
``known_directories``  times of directories, which make the next listing cheap
``file_names``         names in a directory, as columns, listed by several threads
``file_versions``      sizes, times and inodes of files, as columns
``catalogue``          files by absolute path, with dense ids, in a list that grows
``catalogue_writer``   the server's side of catalogues; all catalogues of a node
``learned``            which objects each sample opened, kept for the next run
``written``            files that processes of the node write, which are not cached
``mounts``             paths on storage that is worth a cache
``filesystems``        the identity of a file, by file system and inode
``views``              paths as another process sees them
``answers``            retries an origin, and checks that an answer is the listed object
``steadiness``         whether a file changed while it was read
``store_errors``       translates obstore's errors
``credentials``        accounts of object stores: ``credentials.json``
``store_access``       the identity of a store: endpoint, partition, account
``fork_proxy``         requests of a forked child, through a helper process
"""
