"""How commands speak: as those of `kvmanager`."""

from kvmanager.cli.output import (
    AsJson,
    print_error,
    print_failure,
    print_figures,
    print_json,
    print_table,
    shown,
)

__all__ = [
    "AsJson",
    "print_error",
    "print_failure",
    "print_figures",
    "print_json",
    "print_table",
    "shown",
]
