"""Jobs on data: sync, warm-up, removal and clearing."""
