"""Configuration: one frozen model, one parser."""

from hicache_storage.config.loading import load_config
from hicache_storage.config.model import Config

__all__ = ["Config", "load_config"]
