"""The client's half: reads from the tier, asks the server on a miss, reads the origin when no server answers.

``reader``      the hit path, and what happens off it: start reading here
``files``       files that samples open by path
``lending``     large files that are read in parts
``part_costs``  what such parts cost, beside the origin
``beside``      files that are read beside the loop
``writes``      files that this process changes
``access``      which objects each sample needs
``active``      which reader serves the sample that this thread is making
``readers``     readers that belong to no loader
``shared``      what readers that take turns have in common
``dataset``     a dataset of the node, as its readers see it
``consumer``    tells the server what will be read, and how far it has come
``connection``  one socket of one process
``node``        what commands ask
``sessions``    sessions and stage caches
``launch``      starts the node server
``ending``      ends it, whatever it does
``waits``       epochs that no server was told of
"""
