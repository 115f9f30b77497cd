"""Scripts that know nothing of prefeed, run by path: what a user has before trying it."""
