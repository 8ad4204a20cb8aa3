"""3FS through its user-space I/O rings (USRBIO)."""
