"""The client's half: reads from the tier, asks the server on a miss, reads the origin when no server answers.

``reader``      the hit path, and what happens off it: start reading here
``files``       files that samples open by path
``lending``     large files that are read in parts, and what that costs
``beside``      files that are read beside the loop
``writes``      files that this process changes
``access``      which objects each sample needs
``readers``     which reader serves a read that names none
``dataset``     a dataset of the node, as its readers see it
``consumer``    tells the server what will be read, and how far it has come
``connection``  one socket of one process
``node``        what commands ask, and epochs that no server was told of
``launch``      starts the node server
``ending``      ends it, whatever it does
"""
