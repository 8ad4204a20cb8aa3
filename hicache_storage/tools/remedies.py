"""What to do about an error, by what it says or else by its kind."""

from __future__ import annotations

from hicache_backends.errors import (
    ConfigError,
    HiCacheError,
    IdentityMismatch,
    MissingExtra,
    RegistryError,
    RegistryRefused,
    StorageError,
    StorageUnavailable,
)

_WRITABLE = (
    "let this user read and write there; a mount that is read-only, or for its own user only, has "
    "to be mounted otherwise"
)
_CREDENTIALS = (
    "give credentials in fsspec.options, or where the file system looks for them: its variables or "
    "files"
)
_OF_OBJECTS = {
    "no Mooncake master answers": "start mooncake_master, or mend mooncake.master "
    "(MOONCAKE_MASTER, or the file that MOONCAKE_CONFIG_PATH names); a firewall may be between",
    "as a Mooncake master": "mend mooncake.master: it is the master's RPC port (50051), neither "
    "its HTTP port nor a metadata server's; a master that is frozen has to be started anew",
    "takes no client": "make mooncake.protocol, mooncake.device and mooncake.metadata_server fit "
    "this host and the cluster's release",
    "bucket does not exist": "create the bucket, or mend fsspec.url",
    "NoSuchBucket": "create the bucket, or mend fsspec.url",
    "locate credentials": _CREDENTIALS,
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "Could not connect to the endpoint": "mend the endpoint in fsspec.options, or start what "
    "serves it",
}
"""By words of errors about objects, looked for before the others."""

_SYMPTOMS = {
    "Read-only file system": _WRITABLE,
    "Permission denied": _WRITABLE,
    "is not on 3FS": "mount 3FS there with hf3fs_fuse_main, or mend 3fs.mount_point",
    "does not exist on the 3FS mount": "create the directory above 3fs.mount_point, or mend it",
    "shm is too small": "enlarge /dev/shm (docker: --shm-size), or lower 3fs.staging_bytes "
    'or 3fs.rings; 3fs.io_engine "auto" or "fuse" goes on without rings',
    "the ring self-test failed": "read the log of hf3fs_fuse_main and mend the daemon; "
    '3fs.io_engine "fuse" does without rings',
    "same /dev/shm": "run daemon and engine with one /dev/shm (containers: --ipc=host); "
    '3fs.io_engine "auto" or "fuse" goes on without rings',
    "the /dev/shm of this process": "run daemon and engine with one /dev/shm (containers: "
    '--ipc=host); 3fs.io_engine "auto" or "fuse" goes on without rings',
    "the official ring client is not installed": "install the module hf3fs_fuse, or set "
    '3fs.ring_client to "auto" or "own"',
    "USRBIO": 'give the mount what is missing, or set 3fs.io_engine to "auto" or "fuse"',
    "3FS daemon does not answer": "see what hf3fs_fuse_main waits for, or restart it",
    "is its daemon hung": "see what hf3fs_fuse_main waits for, or restart it",
    "does not answer": "restart what serves the mount: for 3FS hf3fs_fuse_main",
    "is not writable": _WRITABLE,
    "Transport endpoint is not connected": "restart what serves the mount: for 3FS hf3fs_fuse_main",
    "Remote I/O error": "read the log of hf3fs_fuse_main, and see how the 3FS cluster is",
    "belongs to the cluster": "mend 3fs.cluster_id, or give this cluster a 3fs.mount_point of its "
    "own",
    "give 3fs a directory of its own": "set 3fs.mount_point to a directory that no other backend "
    "uses",
    "PermissionError": "let these credentials (fsspec.options, or what the file system finds by "
    "itself) read, write, list and delete below fsspec.url",
    "the self-test failed at": "see what the medium lacks: space, rights or health; "
    "`hicache-storage fsck` looks at what lies there",
}
"""By words of errors about storage; the first that fits."""

_REMEDIES: dict[type[HiCacheError], str] = {
    MissingExtra: "install what is named; Mooncake's wheel needs the system's libibverbs1, "
    "libnuma1 and libcurl4 besides",
    ConfigError: "mend the option or key that is named; `hicache-storage config show` has each "
    "value's origin",
    StorageUnavailable: "create or mount the directory, and let this user write there",
    IdentityMismatch: "give the pages of another identity another directory, or prune them",
    RegistryRefused: "the registry answers: mend what it refuses, such as "
    "global_kvmanager.username, password or password_file, or the server's own settings",
    RegistryError: "start the registry or mend global_kvmanager.endpoint; until then processes "
    "find only their own pages",
}


_SERVICES_REDIS = (
    "the service cannot use its own Redis: start that, or mend the service's --redis, "
    "--redis-password-file or user there; its log has more"
)
_OF_SERVICES = {
    "the service does not allow it": "give a token for the role node and this tenant: "
    "global_kvmanager.token_file or KVMANAGER_TOKEN_FILE; `kvmanager token` makes one",
    "the service cannot answer": _SERVICES_REDIS,
    "(status 502)": _SERVICES_REDIS,
}
"""By words of errors about a registry over HTTP."""


def remedy(error: HiCacheError) -> str:
    """What to do, "" where nothing general can be said."""
    symptoms = {}
    if isinstance(error, RegistryError):
        symptoms = _OF_SERVICES
    elif isinstance(error, StorageError):
        symptoms = _OF_OBJECTS | _SYMPTOMS
    said = str(error)
    for words, text in symptoms.items():
        if words in said:
            return text
    return next((text for kind, text in _REMEDIES.items() if isinstance(error, kind)), "")
