"""What `averaging_compression=...` names. In wire, so that rounds and planning mean the same."""

from __future__ import annotations

from ravnest.errors import ConfigError
from ravnest.wire.compression import COMPRESSIONS
from ravnest.wire.frame import Codec

_CODECS: dict[bool | str, Codec] = {
    **{name: each.activation for name, each in COMPRESSIONS.items()},
    # For rounds alone: plans count bytes between stages before there are values.
    "int8-huffman": Codec.INT8_HUFFMAN,
}


def round_codec(compression: bool | str) -> Codec:
    """The codec of changes in averaging rounds; ConfigError naming the choices otherwise.

    Of a compression's codecs the narrower one, that of activations: what it drops is not lost.
    """
    if isinstance(compression, (bool, str)) and compression in _CODECS:
        return _CODECS[compression]
    choices = ", ".join(map(repr, _CODECS))
    raise ConfigError(
        f"averaging_compression={compression!r} is unknown; expected one of {choices}"
    )
