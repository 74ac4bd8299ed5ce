"""The loop of a stem or leaf: does what the frames from the stage before it ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ravnest.errors import ProtocolError
from ravnest.node.evaluating import StageEvaluator
from ravnest.node.links import ClusterLinks
from ravnest.node.pipeline import StagePipeline
from ravnest.node.rounds import RoundKeeper
from ravnest.node.saving import SubmodelSaver
from ravnest.node.settings import RunSettings
from ravnest.node.tying import TiedParameters
from ravnest.plan.model import NodePlan
from ravnest.stage.groups import refuse_unmatched
from ravnest.stage.randomness import KeyedRandomness
from ravnest.wire.frame import Frame, FrameKind


class StageService:
    """Serves a phase (training, evaluation or prediction) until the root ends it."""

    def __init__(
        self,
        plan: NodePlan,
        settings: RunSettings,
        *,
        links: ClusterLinks,
        pipeline: StagePipeline,
        evaluator: StageEvaluator,
        rounds: RoundKeeper,
        tied: TiedParameters,
        saver: SubmodelSaver,
        randomness: KeyedRandomness,
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._links = links
        self._pipeline = pipeline
        self._evaluator = evaluator
        self._rounds = rounds
        self._tied = tied
        self._saver = saver
        self._randomness = randomness

    def serve(self) -> dict[str, Any]:
        """Returns what the root announced at the end of the phase, its metrics say."""
        while True:
            self._pipeline.advance()
            frame = self._links.receive_forward()
            match frame.kind:
                case FrameKind.ACTIVATION:
                    self._train(frame)
                case FrameKind.EVALUATE:
                    self._evaluator.serve(frame)
                case FrameKind.PHASE_END:
                    return self._end_phase(frame)
                case FrameKind.RUN | FrameKind.EPOCH_END | FrameKind.SETTLE | FrameKind.SAVE:
                    self._control(frame)
                case _:
                    raise ProtocolError(
                        f"node {self._plan.backward_target} sent {frame.kind.name} on the forward "
                        "lane, expected a microbatch or a control frame"
                    )

    def _train(self, frame: Frame) -> None:
        expected = self._pipeline.next_microbatch
        if frame.microbatch != expected:
            raise ProtocolError(
                f"node {self._plan.backward_target} sent microbatch {frame.microbatch}, "
                f"expected {expected}"
            )
        self._pipeline.forward(frame)

    def _control(self, frame: Frame) -> None:
        if frame.kind is FrameKind.RUN:
            frame = self._without_own_patterns(frame)
        # First pass it on, so that the stages behind work at the same time.
        self._links.send_forward(frame)
        match frame.kind:
            case FrameKind.RUN:
                self._settings.check(
                    dict(frame.details["settings"]),
                    node_id=self._plan.node_id,
                    root=self._links.root,
                )
                if self._plan.is_leaf:
                    refuse_unmatched(frame.details["unmatched"])
                self._randomness.run_seed = int(frame.details["seed"])
            case FrameKind.EPOCH_END:
                self._pipeline.finish_epoch(frame)
            case FrameKind.SETTLE:
                self._pipeline.settle()
            case _:
                self._saver.save()

    def _without_own_patterns(self, frame: Frame) -> Frame:
        """Of the patterns that no stage before has a name for, those that this one has none for."""
        left = self._pipeline.unmatched_groups(frame.details["unmatched"])
        return replace(frame, details={**frame.details, "unmatched": left})

    def _end_phase(self, frame: Frame) -> dict[str, Any]:
        self._links.send_forward(frame)
        if frame.details["training"]:
            self._rounds.finish()
            self._tied.finish()
        if frame.details["save"]:
            self._saver.save()
        return dict(frame.details["results"])
