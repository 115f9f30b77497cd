"""What loaders of any framework share: what their samples are made of, and what they tell the node. No framework is imported.

``access``      the objects of a dataset's samples, and the dataset's fingerprint
``declared``    the same, from declarations and from torchvision's datasets
``searching``   finds paths in the attributes of other datasets
``path_forms``  turns such texts into paths of files
``guesses``     plans guessed files, as far as they prove right
``stages``      cached stages between a loader and its files
``report``      the lines that a run writes to the log
``order``       in which order workers ask for samples
``feed``        ties a loader of any framework but PyTorch to the node
``sources``     what stands in for its dataset
``hugging_face``  the order of the files that Hugging Face's ``datasets`` streams
``by_identity``  records of objects of the user's
``replacing``   methods of frameworks that are replaced in place
``kinds``       tells datasets and tensors of the frameworks by the names of their classes
"""
