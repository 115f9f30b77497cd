"""Sample sets in Kubernetes.

``crds``       the resources: start reading here
``schema``     schemas of documents, from the types of the strict reader
``status``     the ``status`` of resources
``paddlejob``  documents of kind PaddleJob
``checking``   holds documents against the schemas, without a cluster
"""
