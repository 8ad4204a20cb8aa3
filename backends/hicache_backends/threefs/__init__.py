"""The segment store on a 3FS mount: what is other there than on a local disk."""
