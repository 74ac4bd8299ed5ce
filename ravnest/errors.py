"""Every error a user can meet, in one tree.

    RavnestError
      ConfigError            a file or argument that people write is wrong
      CaptureError           the model cannot be captured or cut
      PlanningError          no plan exists for these nodes
        NotEnoughMemoryError   a node's memory, or all of it together, is too small
      PlanFileError          a plan, node or stage file is missing, damaged or of another plan
        HashMismatchError      its contents are not what the plan recorded
      TransportError         something between two nodes
        AddressInUseError      the port to listen on is taken
        PeerUnreachableError   a peer did not come within the deadline
        PeerLostError          a peer that was there has gone or fallen silent
        PeerFailedError        a peer reported its own failure; carries the first cause
        ProtocolError          bytes from a peer break the protocol
      TrainingError          a step cannot be computed (criterion, optimizer, batch)
        DataOrderError         the leaf's labels are not those of the root's batch
        LedgerError            samples were sent and not trained, or the other way round
      AveragingError         the members of a ring disagree, or a round failed

A message says what happened, with the value and what was expected; `hint` says how to fix it.
"""

from __future__ import annotations


class RavnestError(Exception):
    """Base of the tree.

    Args:
        message: what is wrong, the actual value and what was expected.
        hint: the exact setting or step that fixes it, shown on a line of its own.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\n  hint: {hint}")
        self.message = message
        self.hint = hint


class ConfigError(RavnestError, ValueError):
    """A file or an argument written by a person is wrong."""


class CaptureError(RavnestError):
    """The model cannot be captured as a graph, or not be cut into stages."""


class PlanningError(RavnestError):
    """There is no plan for this model on these nodes."""


class NotEnoughMemoryError(PlanningError):
    """The model does not fit; the message has needed and available bytes per node."""


class PlanFileError(RavnestError):
    """A file below node_data/ is missing, damaged or belongs to another plan."""


class HashMismatchError(PlanFileError):
    """A file's contents differ from what the plan recorded when it was written."""


class TransportError(RavnestError):
    """Something went wrong between two nodes."""


class AddressInUseError(TransportError):
    """The address to listen on is taken by another process, or not ours to bind."""


class PeerUnreachableError(TransportError):
    """A peer did not come within the deadline."""


class PeerLostError(TransportError):
    """A peer that was connected has gone, or what was awaited from it did not come in time."""


class PeerFailedError(TransportError):
    """A peer said that it failed; the message starts with the first cause."""


class ProtocolError(TransportError):
    """Bytes from a peer do not follow the protocol."""


class TrainingError(RavnestError):
    """A training step cannot be computed."""


class DataOrderError(TrainingError):
    """The batch the leaf has its labels from is not the batch the root trained on."""


class LedgerError(TrainingError):
    """What the leaf trained in an epoch is not what the root sent."""


class AveragingError(RavnestError):
    """An averaging round failed; no member has applied it."""
