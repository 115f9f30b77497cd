"""The parts of any value in a stage: its kind, its content, and the values to visit next.

``fingerprint`` and ``randomness`` visit these parts. Neither runs code of the stage, except what pickling it would run.

``anatomy``    ``anatomy_of`` any value: start reading here
``bytecode``   the content of code, and the names that it refers to
``installed``  whether code belongs to a package with a version, or to the user
``parts``      the values that all of these return
"""
