"""Which codec a node uses on which link: what its script says, or what the plan has chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ravnest.plan.model import NodePlan
from ravnest.plan.prediction import LinkCompression
from ravnest.transport.interface import Formats
from ravnest.wire.compression import COMPRESSIONS, Compression
from ravnest.wire.frame import Codec

_SAID = "the script says so"


@dataclass(frozen=True, slots=True)
class LinkCodecs:
    """The codecs of what a node sends within its cluster.

    Attributes:
        forward: of activations to the next stage.
        backward: of gradients to the stage before.
        forward_reason, backward_reason: why, in words.
    """

    forward: Codec = Codec.RAW
    backward: Codec = Codec.RAW
    forward_reason: str = _SAID
    backward_reason: str = _SAID

    def records(self, plan: NodePlan) -> Iterator[Mapping[str, str | int]]:
        """Per neighbour what it is sent, in which codec, and why; for the event log."""
        sent = (
            (plan.forward_target, "activations", self.forward, self.forward_reason),
            (plan.backward_target, "gradients", self.backward, self.backward_reason),
        )
        for peer, what, codec, reason in sent:
            if peer is not None:
                yield {"peer": peer, "sends": what, "codec": codec.name, "reason": reason}

    def formats(self, plan: NodePlan, averaging: Codec = Codec.RAW) -> Formats:
        """What this node can decode, and what it will send to whom, for the handshake.

        Args:
            averaging: of what members of a ring send each other.
        """
        used = {peer.node_id: {Codec.RAW.name} for peer in plan.peers}
        for peer, codec in (
            (plan.forward_target, self.forward),
            (plan.backward_target, self.backward),
        ):
            if peer is not None:
                used[peer].add(codec.name)
        for ring in plan.rings:
            for peer in ring.partners:
                used[peer].add(averaging.name)
        return Formats(
            frozenset(codec.name for codec in Codec),
            {peer: frozenset(names) for peer, names in used.items()},
        )


def link_codecs(plan: NodePlan, compression: Compression | None) -> LinkCodecs:
    """The codecs of a node.

    Args:
        compression: on every link, or None for what the plan has chosen per link.
    """
    if compression is not None:
        return LinkCodecs(compression.activation, compression.gradient)
    ahead = behind = LinkCompression(0, 0, "none", "the plan predicts nothing")
    for link in plan.compressions:
        if link.source == plan.node_id:
            ahead = link
        else:
            behind = link
    return LinkCodecs(
        _named(ahead.compression).activation,
        _named(behind.compression).gradient,
        ahead.reason,
        behind.reason,
    )


def _named(name: str) -> Compression:
    return COMPRESSIONS[False if name == "none" else name]
