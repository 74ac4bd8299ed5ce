import json
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ravnest.metrics import EventLog, EventName


def lines_of(path: Path) -> list[dict[str, object]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = path.read_text(encoding="utf-8")
    assert text == "" or text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def open_log(folder: Path) -> EventLog:
    return EventLog(folder, node=3, cluster=1, stage=2)


def test_an_event_has_time_place_name_and_fields(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    folder = tmp_path / "run" / "events"
    with EventLog(folder, node=3, cluster=1, stage=2, now=lambda: moment) as log:
        log.emit(EventName.STEP, step=7, loss=0.25, synchronous=True, note=None)
    assert log.path == folder / "node_3.jsonl"
    assert lines_of(log.path) == [
        {
            "time": "2026-01-02T03:04:05.000678+00:00",
            "node": 3,
            "cluster": 1,
            "stage": 2,
            "event": "step",
            "step": 7,
            "loss": 0.25,
            "synchronous": True,
            "note": None,
        }
    ]


def test_the_default_clock_is_utc(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.emit(EventName.RUN_STARTED)
    time = datetime.fromisoformat(str(lines_of(log.path)[0]["time"]))
    assert time.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - time) < timedelta(minutes=1)


def test_a_line_is_on_disk_when_emit_returns(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.emit(EventName.SAVED, path="weights")
        assert len(lines_of(log.path)) == 1


def test_a_new_run_has_none_of_the_old_lines_and_old_writers_do_not_mix_in(tmp_path: Path) -> None:
    old = open_log(tmp_path)
    old.emit(EventName.STEP, step=1)
    with open_log(tmp_path) as new:
        old.emit(EventName.STEP, step=2)
        new.emit(EventName.STEP, step=10)
        old.emit(EventName.STEP, step=3)
    old.close()
    assert [line["step"] for line in lines_of(new.path)] == [10]
    assert [path.name for path in tmp_path.iterdir()] == ["node_3.jsonl"]


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()))
def test_any_scalar_is_one_valid_line(tmp_path_factory: pytest.TempPathFactory, value: object):
    with open_log(tmp_path_factory.mktemp("events")) as log:
        log.emit(EventName.EVALUATION, value=value)
    (line,) = lines_of(log.path)
    got = line["value"]
    if isinstance(value, float) and value not in (0.0, got):
        assert got == str(value)
        assert got in ("nan", "inf", "-inf")
    else:
        assert got == value
        assert type(got) is type(value)


@pytest.mark.parametrize("value", [torch.tensor(1.0), [1], {"a": 1}, b"x", 1j, {1}])
def test_what_is_no_scalar_is_refused(tmp_path: Path, value: object) -> None:
    words = f"'loss' of event step is a {type(value).__name__}"
    with open_log(tmp_path) as log, pytest.raises(TypeError, match=words):
        log.emit(EventName.STEP, loss=value)
    assert lines_of(log.path) == []


def test_own_fields_and_unknown_events_are_refused(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        with pytest.raises(ValueError, match=r"\['node', 'time'\]"):
            log.emit(EventName.STEP, time=1.0, node=2)
        with pytest.raises(ValueError, match="party"):
            log.emit("party")
    assert lines_of(log.path) == []


def test_close_is_idempotent_and_final(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.close()
    log.close()
    with pytest.raises(ValueError, match="closed"):
        log.emit(EventName.RUN_ENDED)


def test_threads_do_not_tear_lines(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:

        def write(writer: int) -> None:
            for step in range(200):
                log.emit(EventName.STEP, writer=writer, step=step, filler="x" * 200)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = lines_of(log.path)
    for writer in range(4):
        assert [line["step"] for line in lines if line["writer"] == writer] == list(range(200))


FULL_DISK = """
import logging, resource, sys
from pathlib import Path
from ravnest.metrics import EventLog, EventName
logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
with EventLog(Path(sys.argv[1]), node=3, cluster=1, stage=2) as log:
    for step in range(100):
        log.emit(EventName.STEP, step=step)
sys.stdout.write(f"went on to {step}; torch: {'torch' in sys.modules}")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
def test_a_full_disk_costs_events_and_one_warning_not_the_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "went on to 99; torch: False"
    assert done.stderr.count("events from now on are lost") == 1
