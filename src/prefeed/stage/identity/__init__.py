"""What anything that a stage is made of consists of: its kind, its content, and the parts that are looked at in turn.

``fingerprint`` and ``randomness`` go through these parts; neither runs any of the stage's code but what pickling it would.

whole.py      ``anatomy_of`` any value, and of instances: start reading here
values.py     numbers, texts, containers, arrays
functions.py  functions, methods, modules
types.py      classes and enums
bytecode.py   what code says, and what it refers to outside itself
installed.py  whose code it is: a package's, known by its version, or the user's own
parts.py      what all of these return
"""
