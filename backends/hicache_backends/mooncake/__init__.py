"""The Mooncake store: its client used safely, an fsspec file system over it, and the backend."""
