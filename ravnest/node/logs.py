"""Makes the library's log visible in a provider process whose script has set up no logging."""

from __future__ import annotations

import logging

LIBRARY_LOGGER = "ravnest"


def show_logs(prefix: str) -> None:
    """Sends the library's log, from INFO on, to stderr with `prefix`, unless logging is set up.

    A script that has handlers on the root logger or on "ravnest" keeps full control.
    """
    logger = logging.getLogger(LIBRARY_LOGGER)
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"%(asctime)s {prefix} %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
