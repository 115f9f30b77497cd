"""Many small files in few large ones, and back."""
