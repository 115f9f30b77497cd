"""prefeed keeps accelerators fed."""
