"""Tiers: where cached values lie on this node. ``tier.py`` is the way in; ``capacity.py`` says how large and where."""
