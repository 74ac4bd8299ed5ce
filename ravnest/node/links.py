"""The lanes of one node inside its cluster: which frame goes where. No schedule, no training."""

from __future__ import annotations

from ravnest.errors import ProtocolError, RavnestError
from ravnest.node.compressing import LinkCodecs
from ravnest.node.couriers import Courier, Parcel
from ravnest.plan.model import NodePlan
from ravnest.transport.interface import Message, Transport
from ravnest.wire.codec import decode
from ravnest.wire.frame import Codec, Frame, FrameKind

FORWARD = "forward"
BACKWARD = "backward"
TARGETS = "targets"
RESULTS = "results"
TIED = "tied"
NORM = "norm"


class ClusterLinks:
    """Sends and receives frames between the stages of one cluster.

    Activations and control frames run down the chain ("forward"), gradients up ("backward").
    Targets go straight from root to leaf, results of evaluation and ledgers straight back.
    Gradients of a parameter that several stages use go straight to its owner, its values straight
    back ("tied").
    Norms of gradients run up and down the chain beside everything else ("norm").

    Args:
        courier: takes what is sent; what comes is taken from the transport.
        codecs: of activations and gradients; everything else travels unchanged.
    """

    def __init__(
        self, plan: NodePlan, transport: Transport, courier: Courier, codecs: LinkCodecs
    ) -> None:
        self._plan = plan
        self._transport = transport
        self._courier = courier
        self._codecs = codecs
        neighbours = (plan.backward_target, FORWARD), (plan.forward_target, BACKWARD)
        self._computed_from = [(peer, lane) for peer, lane in neighbours if peer is not None]
        transport.open_early((FORWARD, BACKWARD, TARGETS), _frame_of)
        self.root, self.leaf = plan.cluster_nodes[0], plan.cluster_nodes[-1]

    def send_forward(self, frame: Frame) -> None:
        """To the next stage; nothing happens on the leaf."""
        if self._plan.forward_target is not None:
            self._send(self._plan.forward_target, FORWARD, frame, self._codecs.forward)

    def receive_forward(self) -> Frame:
        """The next activation or control frame of the stage before."""
        return self._receive(_peer(self._plan.backward_target), FORWARD, "the next microbatch")

    def send_backward(self, frame: Frame) -> None:
        """Gradients to the stage before; nothing happens on the root."""
        if self._plan.backward_target is not None:
            self._send(self._plan.backward_target, BACKWARD, frame, self._codecs.backward)

    def receive_gradient(self, microbatch: object) -> Frame:
        """The gradient frame of a microbatch from the next stage."""
        source = _peer(self._plan.forward_target)
        purpose = f"the gradient of microbatch {microbatch}"
        frame = self._receive(source, BACKWARD, purpose)
        if frame.kind is not FrameKind.GRADIENT or frame.microbatch != microbatch:
            raise _unexpected(source, frame, purpose)
        return frame

    def send_targets(self, frame: Frame) -> None:
        """From root to leaf."""
        self._send(self.leaf, TARGETS, frame, Codec.RAW)

    def receive_targets(self, microbatch: object) -> Frame:
        """On the leaf: the targets that the root shipped for a microbatch."""
        purpose = f"the targets of microbatch {microbatch}"
        frame = self._receive(self.root, TARGETS, purpose)
        if frame.kind is not FrameKind.TARGETS or frame.microbatch != microbatch:
            raise _unexpected(self.root, frame, purpose)
        return frame

    def send_result(self, frame: Frame) -> None:
        """From leaf to root."""
        self._send(self.root, RESULTS, frame, Codec.RAW)

    def receive_result(self, microbatch: object) -> Frame:
        """On the root: the leaf's answer to an evaluated microbatch."""
        purpose = f"the result of microbatch {microbatch}"
        frame = self._receive(self.leaf, RESULTS, purpose)
        if frame.kind is not FrameKind.OUTPUT or frame.microbatch != microbatch:
            raise _unexpected(self.leaf, frame, purpose)
        return frame

    def send_ledger(self, frame: Frame) -> None:
        """From leaf to root, at the end of an epoch."""
        self._send(self.root, RESULTS, frame, Codec.RAW)

    def receive_ledger(self, epoch: int) -> Frame:
        """On the root: what the leaf trained in that epoch."""
        purpose = f"the ledger of epoch {epoch}"
        frame = self._receive(self.leaf, RESULTS, purpose)
        if frame.kind is not FrameKind.LEDGER or frame.details.get("epoch") != epoch:
            raise _unexpected(self.leaf, frame, purpose)
        return frame

    def send_tied(self, peer: int, frame: Frame) -> None:
        """Gradients to the owner of parameters, or values to a holder of replicas."""
        self._send(peer, TIED, frame, Codec.RAW)

    def receive_tied(self, peer: int, kind: FrameKind, number: int) -> Frame:
        """Gradients of a holder's step, or the owner's values, of that number."""
        purpose = f"{kind.name.lower().replace('_', ' ')} number {number}"
        return _numbered(peer, self._receive(peer, TIED, purpose), kind, number, purpose)

    def send_norm(self, peer: int, frame: Frame) -> None:
        """What a step's gradients amount to, to a neighbour."""
        self._send(peer, NORM, frame, Codec.RAW)

    def receive_norm(self, peer: int, step: int) -> Frame:
        """What the gradients of that step amount to, from a neighbour."""
        purpose = f"the norm of the gradients of step {step}"
        frame = self._receive(peer, NORM, purpose)
        return _numbered(peer, frame, FrameKind.GRADIENT_NORM, step, purpose)

    def _send(self, peer: int, lane: str, frame: Frame, codec: Codec) -> None:
        self._courier.send(Parcel(peer, lane, frame, codec), at_once=not self._is_behind())

    def _is_behind(self) -> bool:
        """Whether there is something to compute already."""
        return any(self._transport.has_message(peer, lane) for peer, lane in self._computed_from)

    def _receive(self, peer: int, lane: str, purpose: str) -> Frame:
        try:
            message = self._transport.receive(peer, lane, purpose=purpose)
        except RavnestError:
            self._courier.check()  # its failure is the cause
            raise
        opened = message.content
        return opened if isinstance(opened, Frame) else _frame_of(message)


def _frame_of(message: Message) -> Frame:
    return decode(message.header, memoryview(message.payload[0]))


def _peer(node_id: int | None) -> int:
    if node_id is None:
        raise AssertionError("this stage has no neighbour on that side")
    return node_id


def _numbered(peer: int, frame: Frame, kind: FrameKind, number: int, purpose: str) -> Frame:
    if frame.kind is not kind or frame.weight_version != number:
        raise ProtocolError(
            f"node {peer} sent {frame.kind.name} number {frame.weight_version}, expected {purpose}"
        )
    return frame


def _unexpected(peer: int, frame: Frame, purpose: str) -> ProtocolError:
    return ProtocolError(
        f"node {peer} sent {frame.kind.name} of microbatch {frame.microbatch}, expected {purpose}"
    )
