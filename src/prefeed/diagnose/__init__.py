"""Is this job waiting for data, and what helps? Measured, not guessed."""
