"""Local copies of data sets: in memory, or on a fast disk."""
