"""Pages in large preallocated files of equal slots, one writer each."""
