"""What anything that a stage is made of consists of: its kind, its content, and the parts that are looked at in turn.

``fingerprint`` and ``randomness`` go through these parts; neither runs any of the stage's code but what pickling it would.

anatomy.py    ``anatomy_of`` any value: start reading here
bytecode.py   what code says, and what it refers to outside itself
installed.py  whose code it is: a package's, known by its version, the user's own, or put into a package
parts.py      what all of these return
"""
