"""The registry's calls over HTTP, to the service."""
