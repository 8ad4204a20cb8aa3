"""The registry's service: the same calls over HTTP, for any number of managers over one Redis."""
