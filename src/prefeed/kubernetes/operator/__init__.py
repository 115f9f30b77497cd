"""The operator: makes a cluster match the documents of prefeed's kinds. Start with ``groups``.

``groups``       values: a set with its objects, and the result of a decision
``sample_sets``  decisions about SampleSets
``sample_jobs``  decisions about SampleJobs
``paddle_jobs``  decisions about PaddleJobs
``kinds``        kinds of documents and objects
``world``        cache of objects in the cluster
``carrying``     applies decisions to the cluster
``refusals``     conditions for objects that the API server refused
``uncached``     pods with the label of a set and no cache
``working``      queue of groups, with retries
``admission``    reply to an AdmissionReview of a pod
``webhook``      HTTPS endpoint for AdmissionReviews
``reports``      cache sizes of a set's servers
``asking``       polls these servers
``counts``       metrics
``client``       API server client
``service``      the program, on kopf: the only module that imports it
"""
