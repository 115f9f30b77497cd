"""Items of any iterable, made by a thread before they are asked for."""
