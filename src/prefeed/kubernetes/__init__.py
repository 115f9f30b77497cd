"""Sample sets in Kubernetes.

``crds``       the resources: start reading here
``schema``     schemas of documents, from the types of the strict reader
``status``     the ``status`` of resources
``paddlejob``  documents of kind PaddleJob
``paddle_pods``  what becomes of them: pods, a Service, a status
``mounts``     a set as a directory of its nodes
``workloads``  documents in which pods are described, and what becomes of them
``jobs``       jobs of sample sets, as pods have them
``pods``       a pod gets a cache: a sidecar and volumes
``nodes``      a node gets a cache that its pods share
``operator``   makes what documents ask for in a cluster
``sets``       a sample set as a pod has it
``without_effect``  options that change nothing in a cluster
``layout``     where volumes lie in containers
``sidecar``    what the sidecar does
``sizes``      how it tells the operator what it holds
``child``      commands that it runs beside its server
"""
