"""Contract suites for sources and tiers, and fakes that pass them.

``source_contract``        the contract of sources
``tier_contract``          the contract of tiers, and a tier of one dict
``sources``                sources in memory: counting, slow, faulty
``slow_directory``         a directory with slow opens
``slow_directory_server``  the process behind it
"""
