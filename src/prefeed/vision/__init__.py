"""Lean preprocessing of pictures."""
