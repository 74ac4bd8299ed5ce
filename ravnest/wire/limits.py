"""What a frame from a stranger may hold at most; an own frame beyond it fails at its sender."""

from __future__ import annotations

from ravnest.errors import ProtocolError

MAX_TENSORS = 4096
MAX_SCALARS = 4096
MAX_RANK = 32
MAX_NAME_BYTES = 512
MAX_DETAILS_BYTES = 16 << 20
# A structure of plan.structure nests at most 64 containers, of three JSON levels each.
MAX_DETAILS_DEPTH = 256
MAX_INTEGER_DIGITS = 1024
MAX_COUNT = (1 << 63) - 1


def check(what: str, actual: int, limit: int) -> None:
    """Raises ProtocolError unless 0 <= actual <= limit."""
    if not 0 <= actual <= limit:
        raise ProtocolError(f"{what} is {actual}, expected 0 to {limit}")


def checked_name(name: str) -> str:
    """The name, ProtocolError when it is too long."""
    if (num_bytes := len(name.encode())) > MAX_NAME_BYTES:
        raise ProtocolError(
            f"name {name[:40]!r}... has {num_bytes} bytes, at most {MAX_NAME_BYTES} are allowed"
        )
    return name
