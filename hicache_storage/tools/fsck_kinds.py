"""What can be wrong in a registry, in words; what can be wrong in a root is in `fsck_find`."""

from __future__ import annotations

STALE = "stale_entries"
NO_STORE = "entries_without_store"
NO_LOCATION = "unreadable_locations"
GARBAGE = "garbage_entries"
MISSING = "missing_pages"
UNANNOUNCED = "unannounced_pages"
CLEARED = "cleared_stores"
COUNTS = "wrong_counts"
UNREGISTERED = "unregistered_namespaces"
UNKNOWN_NAMESPACES = "unknown_namespaces"
UNLISTED = "unlisted_namespaces"
NAMES = "damaged_namespaces"
UNKNOWN_STORES = "unknown_stores"
STORE_RECORDS = "damaged_store_records"
STRAY_SEQUENCES = "stray_sequences"
STRAY_MEDIA = "stray_media"
CLAIMS = "endless_claims"
KINDS = {
    STALE: "entries whose page is not where they say",
    NO_STORE: "entries of stores that are not there",
    NO_LOCATION: "entries whose location is none of their namespace",
    GARBAGE: "what lies among the entries and is none",
    MISSING: "pages that lie on a medium and are not registered there",
    UNANNOUNCED: "pages of live processes that were not registered any more",
    CLEARED: "stores that nobody uses, of before their namespace was cleared",
    COUNTS: "numbers of pages that are not those of the entries",
    UNREGISTERED: "namespaces on a medium that the registry does not know",
    UNKNOWN_NAMESPACES: "namespaces that are listed and of which nothing is known",
    UNLISTED: "namespaces that are not listed",
    NAMES: "namespaces that cannot be read",
    UNKNOWN_STORES: "records of stores that are not there",
    STORE_RECORDS: "records of stores that are damaged, or say another medium",
    STRAY_SEQUENCES: "sequences of stores without a record",
    STRAY_MEDIA: "facts about media that are not listed, or damaged ones",
    CLAIMS: "claims that would not end, or are none",
}
"""Each kind of trouble, in words."""
