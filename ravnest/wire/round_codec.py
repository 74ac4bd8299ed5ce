"""What `averaging_compression=...` names. In wire, so that rounds and planning mean the same."""

from __future__ import annotations

from ravnest.errors import ConfigError
from ravnest.wire.compression import COMPRESSIONS
from ravnest.wire.frame import Codec


def round_codec(compression: bool | str) -> Codec:
    """The codec of changes in averaging rounds; ConfigError naming the choices otherwise.

    Of a compression's codecs the narrower one, that of activations: what it drops is not lost.
    """
    if isinstance(compression, (bool, str)) and compression in COMPRESSIONS:
        return COMPRESSIONS[compression].activation
    choices = ", ".join(map(repr, COMPRESSIONS))
    raise ConfigError(
        f"averaging_compression={compression!r} is unknown; expected one of {choices}"
    )
