"""Finds out whether a peer is there, and whether the two of them could talk."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from enum import Enum, auto

from ravnest.errors import ProtocolError
from ravnest.transport.address import connect
from ravnest.transport.credentials import Identity, words_of

_FIX = "both need certificates of one authority"


class Answer(Enum):
    """What came of knocking at a peer's door."""

    OPEN = auto()
    """The peer is there."""
    REFUSED = auto()
    """The host says that nobody listens there."""
    SILENT = auto()
    """The host has connected, and whoever listens says nothing."""
    ENDED = auto()
    """It ended before whoever listens said anything."""
    AWAY = auto()
    """The host is not to be reached, or nothing is known."""


@dataclass(frozen=True, slots=True)
class Door:
    """Where one peer is, and how it is talked to.

    Attributes:
        address: `host:port`.
        name: what its certificate has to be for.
        identity: of this node; None: without TLS.
        rate_bps: bits per second that the link to it can do, None where that is not known.
    """

    address: str
    name: str
    identity: Identity | None = None
    rate_bps: float | None = None

    def knock(self) -> Answer:
        """Tries to connect.

        Raises:
            ProtocolError: both cannot talk: one has TLS and the other has not, or this node does
                not accept the peer's certificate.
        """
        try:
            with connect(self.address) as plain:
                if self.identity is None:
                    return _first_answer(plain)
                context = self.identity.connecting
                with context.wrap_socket(plain, server_hostname=self.name) as secured:
                    # Only what comes after it shows whether our certificate was accepted.
                    return _first_answer(secured)
        except ssl.SSLCertVerificationError as error:
            raise ProtocolError(
                f"its certificate is not accepted: {words_of(error)}; expected one of the "
                f"authority this node trusts, for {self.name}"
            ) from error
        except ssl.SSLError as error:
            if error.reason == "WRONG_VERSION_NUMBER":
                raise ProtocolError(
                    "it does not use TLS, and this node does; give both credentials, or none"
                ) from error
            return Answer.AWAY
        except ConnectionRefusedError:
            return Answer.REFUSED
        except OSError:
            return Answer.AWAY

    def is_open(self) -> bool:
        """Whether a peer that was not there before is there.

        Raises:
            ProtocolError: as `knock`, or the peer does not accept this node's certificate.
        """
        answer = self.knock()
        if self.identity is not None and answer is Answer.ENDED:
            # A server about to close, which then is not there any more, or one that refuses ours.
            answer = self.knock()
            if answer is Answer.ENDED:
                raise ProtocolError(f"it does not accept this node's certificate; {_FIX}")
        return answer is Answer.OPEN


def _first_answer(connected: socket.socket) -> Answer:
    """A gRPC server speaks first."""
    try:
        return Answer.OPEN if connected.recv(1) else Answer.ENDED
    except (ssl.SSLError, ConnectionError):  # an alert, or not even that
        return Answer.ENDED
    except TimeoutError:
        return Answer.SILENT
    except OSError:
        return Answer.AWAY
