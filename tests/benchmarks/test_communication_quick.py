"""The communication benchmark still runs; its losses are not judged here, its bytes are."""

from __future__ import annotations

from quick_form import run_benchmark


def test_the_short_form_reports_every_setting() -> None:
    _, report = run_benchmark("communication", "--quick")
    four, eight = report["4 bits, every 100 steps"], report["8 bits, every 100 steps"]
    # Those of 4 bits depend on nothing but the number of steps, those of 8 hardly.
    assert four["times_fewer_bytes"] > 680
    assert eight["times_fewer_bytes"] > 396  # without Huffman codes 391
    assert four["bytes"] < 0.65 * eight["bytes"]
