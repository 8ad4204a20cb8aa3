"""Floor 1: page bytes on a medium. Knows nothing of Redis, torch or an engine."""
