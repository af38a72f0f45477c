"""File systems: whether a database file may lie where it is to be.

Owns: recognising file systems on which SQLite's locks and its shared memory do not work: those of a network, and some
in user space.
Never: refuses what it does not know, or looks beyond the kernel's table of mounts (Linux).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from holdfast.model.errors import UnsafeFilesystem

VARIABLE: Final = "HOLDFAST_ALLOW_NETWORK_FILESYSTEM"
MOUNTS: Final = Path("/proc/self/mountinfo")

UNSAFE: Final = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ncpfs", "coda", "davfs"),
        *("ceph", "lustre", "gpfs", "beegfs", "glusterfs", "orangefs", "pvfs2", "gfs2", "ocfs2"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.cephfs", "fuse.s3fs", "fuse.rclone"),
        *("fuse.gcsfuse", "fuse.goofys", "fuse.mount-s3", "fuse.blobfuse", "fuse.blobfuse2", "fuse.juicefs"),
        *("fuse.davfs", "fuse.davfs2", "fuse.curlftpfs", "fuse.smbnetfs", "fuse.nfs", "fuse.moosefs", "fuse.mfs"),
        *("fuse.lizardfs", "fuse.seaweedfs", "fuse.weed", "fuse.gvfsd-fuse", "fuse.google-drive-ocamlfuse"),
    }
)
"""As the kernel calls them. Others in user space (fuse-overlayfs, mergerfs, NTFS) pass locks on."""


def refuse_unsafe(path: Path, *, allowed: bool) -> None:
    """Raises UnsafeFilesystem when a database at this path could not be locked. `allowed`: the caller takes the risk.
    (The variable does for a whole process.)"""
    kind = None if allowed or is_allowed_here() else filesystem_of(path.resolve().parent)
    if kind in UNSAFE:
        raise UnsafeFilesystem(
            f"{path} lies on a file system of type {kind}, where SQLite's locks do not work: two processes would "
            "damage the database. Use a local disk, or PostgreSQL for several machines. If one process on one machine "
            f"is all that opens it, set {VARIABLE}=1, or hf.open(..., allow_network_filesystem=True), at your own risk"
        )


def is_allowed_here() -> bool:
    """Whether the variable allows it."""
    return os.environ.get(VARIABLE, "0").lower() not in ("", "0", "false", "no")


def filesystem_of(directory: Path) -> str | None:
    """The type of the file system that a directory is on; None: it is not known."""
    try:
        device = os.stat(directory).st_dev
        mounts = MOUNTS.read_text("utf-8", "replace")
    except OSError:
        return None
    return kind_in(mounts, f"{os.major(device)}:{os.minor(device)}")


def kind_in(mounts: str, device: str) -> str | None:
    """The type of the file system of a device, in the kernel's table of mounts."""
    for line in mounts.splitlines():
        where, _, what = line.partition(" - ")
        fields = where.split(" ")
        if len(fields) > 2 and fields[2] == device:
            return what.partition(" ")[0]
    return None
