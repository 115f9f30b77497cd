"""Sample sets in Kubernetes: manifests, the sidecar of a pod, and the operator. Start with ``crds``.

``crds``            CustomResourceDefinitions of SampleSet, SampleJob and PaddleJob
``schema``          structural schemas, derived from the types of the strict reader
``status``          fields of ``status``
``paddlejob``       reader of PaddleJob documents
``paddle_pods``     pods and Service of a PaddleJob
``mounts``          StatefulSet that mounts a set on its nodes
``workloads``       patches the pods of manifests
``jobs``            warm-ups that sidecars run
``pods``            adds a sidecar and volumes to a pod
``nodes``           cache of a node, shared by its pods
``operator``        reconciles documents in a cluster
``sets``            a sample set with the volumes of a pod
``without_effect``  options that have no effect in a cluster
``layout``          paths of volumes in containers
``sidecar``         program of the sidecar
``sizes``           HTTP endpoint that reports cache sizes to the operator
``child``           child processes of the sidecar
"""
