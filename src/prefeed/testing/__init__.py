"""Contract suites for sources and tiers, and fakes that pass them.

``source_contract``        what every source must do
``tier_contract``          what every tier must do, and a tier of one dict
``sources``                sources in memory: counting, slow, faulty
``slow_directory``         a directory whose every open takes time
``slow_directory_server``  the process behind it
``fuse_wire``              the part of FUSE's protocol that it speaks
"""
