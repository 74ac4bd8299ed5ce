"""Finds out whether a peer is there, and whether the two of them could talk."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from enum import Enum, auto

from ravnest.errors import ProtocolError
from ravnest.transport.address import accepts_connections, connect
from ravnest.transport.credentials import Identity, words_of

_FIX = "both need certificates of one authority"


class _Answer(Enum):
    NONE = auto()
    """Nobody is there, or nobody yet."""
    END = auto()
    """A handshake, and then nothing more."""
    WORDS = auto()
    """A handshake, and then what gRPC says first."""


@dataclass(frozen=True, slots=True)
class Door:
    """Where one peer is, and how it is talked to.

    Attributes:
        address: `host:port`.
        name: what its certificate has to be for.
        identity: of this node; None: without TLS.
    """

    address: str
    name: str
    identity: Identity | None = None

    def is_open(self) -> bool:
        """Tries to connect; true when the peer is there.

        Raises:
            ProtocolError: it is, but one of both does not accept the other's certificate.
        """
        if self.identity is None:
            return accepts_connections(self.address)
        answer = self._answer(self.identity.connecting)
        if answer is _Answer.END:
            # A server about to close, which then is not there any more, or one that refuses ours.
            answer = self._answer(self.identity.connecting)
        if answer is _Answer.END:
            raise ProtocolError(f"it does not accept this node's certificate; {_FIX}")
        return answer is _Answer.WORDS

    def _answer(self, context: ssl.SSLContext) -> _Answer:
        try:
            with (
                connect(self.address) as plain,
                context.wrap_socket(plain, server_hostname=self.name) as secured,
            ):
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
            return _Answer.NONE
        except OSError:
            return _Answer.NONE


def _first_answer(secured: ssl.SSLSocket) -> _Answer:
    """Only what comes after the handshake shows whether our certificate was accepted."""
    try:
        return _Answer.WORDS if secured.recv(1) else _Answer.END
    except (ssl.SSLError, ConnectionError):  # an alert, or not even that
        return _Answer.END
    except OSError:
        return _Answer.NONE
