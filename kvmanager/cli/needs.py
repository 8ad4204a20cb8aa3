"""What a command needs: the service's libraries, a secret in a file."""

from __future__ import annotations

from pathlib import Path

from hicache_backends.errors import ConfigError, MissingExtra


def need_service(feature: str) -> None:
    """Raises MissingExtra where the service's libraries are not installed."""
    try:
        import fastapi
        import uvicorn

        _ = fastapi, uvicorn
    except ImportError:
        raise MissingExtra(feature, "kvmanager") from None


def read_secret(file: Path) -> str:
    """The one line of a file. Raises ConfigError."""
    try:
        return file.read_text().strip()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} cannot be read: it is no text") from None
