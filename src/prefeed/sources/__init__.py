"""Origins and their listings: directories, object stores, HTTP servers, and manifests on disk.

Start with ``urls.open_source`` (a URL becomes a ``Source``) and ``library.ManifestLibrary`` (a URL becomes a
``Manifest``). Nothing here retries or caches objects: one call is one request, and its failure is one error.

``protocol``           what a source is
``urls``               from a URL or a path to a source
``posix``              files below a directory
``objectstore``        objects behind S3, GCS, Azure and HTTP, through obstore
``store_listing``      listings through obstore: prefix by prefix, or an index file, or WebDAV
``plain_web``          answers of web servers that give no length
``packed``             a pack as an origin
``pack_index``         the index of a pack
``listing``            objects by dense ids, in mapped columns: what both kinds have in common
``manifest``           the immutable, ordered listing of one origin, as one mapped file
``manifest_writer``    manifests made from listings, lists and arrays
``library``            all manifests of one home
``known_directories``  what makes the next listing of a local directory cheap
``file_names``         names in a directory, as columns, asked for by several threads
``file_versions``      sizes, times and inodes of files, as columns
``catalogue``          files named by absolute path, with dense ids, in a list that grows
``catalogue_writer``   the same, in the hands of its server; all of one node
``learned``            which objects each sample opened, kept for the next run
``written``            files that some process of the node writes, and that are not cached
``mounts``             which paths lie on storage worth a cache
``filesystems``        which file a path leads to, by file system and inode
``views``              paths as another process sees them
``answers``            an origin asked again while its errors may pass, and whether the answer is the object that was listed
``steadiness``         whether a file was changed while it was read
``store_errors``       which error stands for one of obstore's
``credentials``        who speaks to a store: ``credentials.json``
``store_access``       which store it is: endpoint, partition, account
``fork_proxy``         requests from a forked child, through a fresh process
"""
