"""Benchmarks and the demo: real pictures, real servers, always beside the same job without prefeed.

``photos`` makes the pictures, ``origin`` serves them, ``harness`` runs variants in turn and sums them up,
``loading`` is one variant in a process of its own, ``cases`` holds one module a benchmark, ``demo`` the demo.
"""
