"""Writes the stages of a plan, and lets every distinct chain of them be tested once it is whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ravnest.capture.stage_file import write_stage
from ravnest.capture.stages import StageGraphs
from ravnest.plan.parts import StagePlan
from ravnest.planning.checking.self_test import SelfTest
from ravnest.planning.streaming import StreamedWeights

Chain = Sequence[StageGraphs]


class StageWriter:
    """What `write_plan` calls for every stage, before it commits anything.

    Args:
        chains: the stages of each cluster; clusters that are cut alike share one.
        streamed: has the values of a model that has none itself.
        test: of every chain that is cut in another way than those before it.
    """

    def __init__(
        self,
        chains: Sequence[Chain],
        streamed: StreamedWeights | None,
        test: SelfTest | None,
    ) -> None:
        self._chains = chains
        self._streamed = streamed
        self._test = test
        self._folders: dict[int, list[Path]] = {}

    def __call__(self, stage: StagePlan, directory: Path) -> None:
        """Writes one stage; stages come in order of cluster and index."""
        chain = self._chains[stage.cluster_id]
        if self._streamed is None:
            write_stage(chain[stage.index], directory)
        else:
            write_stage(chain[stage.index], directory, self._streamed.read)
        if self._test is None:
            return
        folders = self._folders.setdefault(stage.cluster_id, [])
        folders.append(directory)
        is_new = not any(chain is earlier for earlier in self._chains[: stage.cluster_id])
        if len(folders) == len(chain) and is_new:
            self._test.check(folders)
