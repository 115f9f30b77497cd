"""The operator: makes what documents of prefeed's kinds ask for in a cluster.

``groups``       what is known of a set, and what a decision comes to: start reading here
``sample_sets``  decisions about sets
``sample_jobs``  decisions about jobs
``paddle_jobs``  decisions about PaddleJobs
``kinds``        all kinds of documents and objects
``world``        what was seen last
``carrying``     carries decisions out
``refusals``     what is said of an object that the API server refuses
``uncached``     pods that ask for a set and have no cache
``working``      which group is worked at, and when again
``admission``    the answer to a request about a pod
``webhook``      the endpoint of these requests
``reports``      how much the servers of a set hold
``asking``       asks them
``counts``       its metrics
``client``       requests to the API server
``service``      the program, on kopf: the only module that imports it
"""
