"""What the members of a ring tell each other before any tensor moves, and whether they agree.

Every member gets the same headers, so every member comes to the same verdict in the same words.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from ravnest.averaging.lane import RingLane
from ravnest.wire.frame import Frame, FrameKind

_MAX_SHOWN = 5
_MAX_PROBLEM_LENGTH = 500
_FIELDS: Mapping[str, tuple[type, ...]] = {
    "round": (int,),
    "num_samples": (int,),
    "finished": (bool,),
    "digest": (str,),
    "problem": (str, type(None)),
}


@dataclass(frozen=True, slots=True)
class MemberHeader:
    """What one member brings to a round.

    Attributes:
        round_id: the round it believes to be in.
        num_samples: samples it trained on since the last round.
        finished: it has no more steps.
        digest: hash of its description; "" when it has a problem.
        problem: why it cannot take part, None when it can.
    """

    round_id: int
    num_samples: int
    finished: bool
    digest: str
    problem: str | None = None


Description = Mapping[str, str]
"""What has to be alike, in order: settings, then dtype and shape by tensor name."""


def digest_of(description: Description) -> str:
    """A hash over names, values and order."""
    return hashlib.sha256(_to_json(description)).hexdigest()


def exchange_headers(lane: RingLane, own: MemberHeader) -> list[MemberHeader]:
    """The headers of all members, by rank."""
    problem = own.problem[:_MAX_PROBLEM_LENGTH] if own.problem is not None else None
    scalars = lane.scalars(
        round=own.round_id,
        num_samples=own.num_samples,
        finished=own.finished,
        digest=own.digest,
        problem=problem,
    )
    purpose = f"header of averaging round {own.round_id} in ring {lane.ring.ring_id}"
    frames = lane.gather(Frame(FrameKind.RING_HEADER, scalars=scalars), purpose=purpose)
    return [_header_of(lane, frame, rank, purpose) for rank, frame in enumerate(frames)]


def find_problem(
    lane: RingLane, headers: Sequence[MemberHeader], description: Description
) -> str | None:
    """Why the round cannot be, in the same words on every member; None when all agree.

    Only when the digests differ are the descriptions themselves passed around, to name the tensors.
    """
    ring = lane.ring
    if any(header.problem is not None for header in headers):
        told = [
            f"node {ring.members[rank]}: {header.problem}"
            for rank, header in enumerate(headers)
            if header.problem is not None
        ]
        return f"ring {ring.ring_id}: " + "; ".join(told)
    if len({header.round_id for header in headers}) > 1:
        rounds = ", ".join(
            f"node {ring.members[rank]} is in round {header.round_id}"
            for rank, header in enumerate(headers)
        )
        return f"ring {ring.ring_id}: members are in different rounds: {rounds}"
    if len({header.digest for header in headers}) > 1:
        return _differences(ring.ring_id, ring.members, _exchange_descriptions(lane, description))
    return None


def _header_of(lane: RingLane, frame: Frame, rank: int, purpose: str) -> MemberHeader:
    for name, types in _FIELDS.items():
        value = frame.scalars.get(name)
        if name not in frame.scalars or type(value) not in types:
            words = " or ".join(kind.__name__ for kind in types)
            raise lane.fail(purpose, f"{name} {value!r}", f"{words}", origin=rank)
    num_samples = cast(int, frame.scalars["num_samples"])
    if num_samples < 0:
        raise lane.fail(purpose, f"num_samples {num_samples}", "0 or more", origin=rank)
    return MemberHeader(
        round_id=cast(int, frame.scalars["round"]),
        num_samples=num_samples,
        finished=cast(bool, frame.scalars["finished"]),
        digest=cast(str, frame.scalars["digest"]),
        problem=cast("str | None", frame.scalars["problem"]),
    )


def _exchange_descriptions(lane: RingLane, own: Description) -> list[Description]:
    purpose = f"tensor descriptions of ring {lane.ring.ring_id}"
    text = torch.frombuffer(bytearray(_to_json(own)), dtype=torch.uint8)
    frame = Frame(FrameKind.RING_HEADER, tensors={"description": text}, scalars=lane.scalars())
    gathered = lane.gather(frame, purpose=purpose)
    return [_description_of(lane, got, rank, purpose) for rank, got in enumerate(gathered)]


def _description_of(lane: RingLane, frame: Frame, rank: int, purpose: str) -> Description:
    text = frame.tensors.get("description")
    if text is None or text.dtype != torch.uint8 or text.dim() != 1:
        raise lane.fail(purpose, "no description", "one uint8 tensor with JSON text", origin=rank)
    try:
        entries = json.loads(text.numpy().tobytes())
    except (ValueError, RecursionError) as error:
        raise lane.fail(
            purpose, "text that is no JSON", "a list of pairs of strings", origin=rank
        ) from error
    if not isinstance(entries, list) or not all(
        isinstance(entry, list) and len(entry) == 2 and all(isinstance(part, str) for part in entry)
        for entry in entries
    ):
        raise lane.fail(purpose, "JSON of another form", "a list of pairs of strings", origin=rank)
    return dict(entries)


def _to_json(description: Description) -> bytes:
    return json.dumps(list(description.items())).encode()


def _differences(ring_id: int, members: Sequence[int], descriptions: list[Description]) -> str:
    names = list(dict.fromkeys(name for description in descriptions for name in description))
    lines = [
        f"{name!r}: "
        + ", ".join(
            f"node {node} has {description.get(name, 'none')}"
            for node, description in zip(members, descriptions, strict=True)
        )
        for name in names
        if len({description.get(name) for description in descriptions}) > 1
    ]
    if not lines:
        orders = ", ".join(
            f"node {node} starts with {next(iter(description), None)!r}"
            for node, description in zip(members, descriptions, strict=True)
        )
        lines = [f"the order of the tensors differs: {orders}"]
    if len(lines) > _MAX_SHOWN:
        lines = [*lines[:_MAX_SHOWN], f"and {len(lines) - _MAX_SHOWN} more"]
    return f"ring {ring_id}: members disagree on " + "; ".join(lines)
