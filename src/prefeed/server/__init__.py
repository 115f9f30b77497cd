"""The node server: one process per user and node, the only one that fetches ahead. It is not on the hit path.

``main``              start-up, which is also recovery; the lock; shutdown
``loop``              one thread: sockets, wake-ups, timers; the clients and their ways to origins
``handlers``          receives messages and answers them
``node``              carries out the decisions of ``core``: start reading here
``counting``          counters, and a snapshot of them
``fetchers``          threads that read origins
``fetch_processes``   processes that fetch for the server
``fetch_process``     one of them: its messages, and what it does
``fetch_thread``      the same in a thread, for parts of objects
``datasets``          the datasets in use: their listing, source, and entries in the tier
``dataset_opener``    opens and lists datasets, in threads of its own
``sharing``           files that several catalogues name
``checks``            checks files for changes
``disk``              the disk tier of objects
``pool``              the pool tier
``memory_watch``      gives memory back while programs grow
``warm_ups``          fills the tiers on request
``sessions``          creates, lists and drops stage caches
``tier_budget``       directories of stage caches, and their share of memory and disk
``status``            the view of the node for operators; reported epochs
``metrics``           the metrics for Prometheus, and the answers to its requests
``metrics_endpoint``  the socket of the metrics
"""
