"""The node server: one process per user and node, the only one that fetches ahead. It is never on the hit path.

``main``              start-up, which is recovery; the lock; the end
``loop``              one thread: sockets, wake-ups, timers; each client, and how it reaches its origins
``handlers``          messages in, messages out
``node``              carries out what ``core`` decides: start reading here
``counting``          what is counted, and the snapshot of it
``fetchers``          threads that read origins
``datasets``          the datasets in use, by number: what each lists, what reads it, what the tier holds of it
``dataset_opener``    manifests on their way, listed in threads of their own
``sharing``           files that several catalogues name
``checks``            whether files have changed since they were read
``disk``              the disk tier of objects
``pool``              the pool tier
``memory_watch``      gives memory back while jobs grow
``warm_ups``          fills the tiers on request
``sessions``          stage caches: made, listed, dropped
``tier_budget``       where they lie, and how much memory and disk they may take
``status``            what an operator sees; epochs that loaders have told
``metrics``           what Prometheus is told, and how it is answered
``metrics_endpoint``  the socket at which it asks
"""
