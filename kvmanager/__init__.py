"""Floor 2: which process and store owns which page, kept in Redis. Knows no torch, no engine."""
