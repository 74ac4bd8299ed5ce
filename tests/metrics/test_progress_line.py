import io

import pytest

from ravnest.metrics import ProgressLine


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_epoch(
    line: ProgressLine, clock: Clock, *, epoch: int, batches: int, known: bool, batch_s: float
) -> None:
    line.begin_epoch(epoch, num_batches=batches if known else None)
    for batch in range(batches):
        clock.now_s += batch_s
        line.batch_done(64, loss=1.0 / (batch + 1))
    line.end_epoch()


def test_a_line_has_place_loss_rate_and_time_left() -> None:
    clock, stream = Clock(), io.StringIO()
    line = ProgressLine(stream, num_epochs=10, clock=clock)
    line.begin_epoch(1, num_batches=17)
    for _ in range(12):
        clock.now_s += 0.05
        line.batch_done(64, loss=0.53214)
    # 5 batches of this epoch and 8 epochs of 17 are left.
    assert str(line) == "epoch 2/10 batch 12/17 | loss 0.5321 | 1,280 samples/s | 0:07 left"
    assert stream.getvalue() == ""


def test_unknown_lengths_are_left_out() -> None:
    clock = Clock()
    line = ProgressLine(io.StringIO(), clock=clock)
    assert str(line) == "epoch 1 batch 0"
    line.begin_epoch(4)
    clock.now_s += 8
    line.batch_done(4)
    assert str(line) == "epoch 5 batch 1 | 0.5 samples/s"
    line.batch_done(4, loss=float("nan"))
    assert str(line) == "epoch 5 batch 2 | loss nan | 1.0 samples/s"


def test_hours_are_shown() -> None:
    clock = Clock()
    line = ProgressLine(None, num_epochs=1, clock=clock)
    line.begin_epoch(0, num_batches=3662)
    clock.now_s += 1
    line.batch_done(1)
    assert str(line).endswith("1:01:01 left")


def test_more_batches_than_announced_leave_no_time() -> None:
    clock = Clock()
    line = ProgressLine(None, num_epochs=1, clock=clock)
    line.begin_epoch(0, num_batches=1)
    for _ in range(3):
        clock.now_s += 1
        line.batch_done(1)
    assert str(line).endswith("batch 3/1 | 1.0 samples/s | 0:00 left")


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    clock = Clock()
    line = ProgressLine(None, clock=clock)
    line.begin_epoch(0)
    for batch_s in [1.0] * 30 + [0.1] * 101:
        clock.now_s += batch_s
        line.batch_done(20)
    assert "200 samples/s" in str(line)


def test_no_time_at_all_gives_no_rate() -> None:
    line = ProgressLine(None, num_epochs=1, clock=Clock())
    line.begin_epoch(0, num_batches=2)
    line.batch_done(64, loss=1.0)
    assert str(line) == "epoch 1/1 batch 1/2 | loss 1.0000"


def test_a_file_gets_a_line_every_five_seconds_and_at_the_end_of_an_epoch() -> None:
    clock, stream = Clock(), io.StringIO()
    line = ProgressLine(stream, num_epochs=2, clock=clock)
    for epoch in range(2):
        run_epoch(line, clock, epoch=epoch, batches=12, known=True, batch_s=1.0)
    line.close()
    shown = [text.partition(" |")[0] for text in stream.getvalue().splitlines()]
    assert shown == [
        f"epoch {epoch}/2 batch {batch}/12" for epoch in (1, 2) for batch in (5, 10, 12)
    ]
    assert "\r" not in stream.getvalue()


def test_short_epochs_leave_one_line_each_in_a_file() -> None:
    clock, stream = Clock(), io.StringIO()
    line = ProgressLine(stream, clock=clock)
    for epoch in range(3):
        run_epoch(line, clock, epoch=epoch, batches=5, known=False, batch_s=0.1)
    assert len(stream.getvalue().splitlines()) == 3


def test_a_terminal_is_overwritten_at_most_four_times_a_second() -> None:
    clock, stream = Clock(), Terminal()
    line = ProgressLine(stream, num_epochs=1, clock=clock)
    run_epoch(line, clock, epoch=0, batches=64, known=True, batch_s=1 / 64)
    text = stream.getvalue()
    # At once, then every quarter of the second that the epoch takes, then the end.
    assert text.count("\r") == 1 + 3 + 1
    assert text.count("\n") == 1
    assert text.endswith("0:00 left\n")


def test_a_shorter_line_covers_a_longer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    clock, stream = Clock(), Terminal()
    line = ProgressLine(stream, clock=clock)
    line.begin_epoch(0)
    for loss in (123456.0, 1.0):
        clock.now_s += 1
        line.batch_done(1, loss=loss)
    _, first, second = stream.getvalue().split("\r")
    assert len(second) == len(first) > len(second.rstrip())


def test_a_narrow_terminal_does_not_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    clock, stream = Clock(), Terminal()
    line = ProgressLine(stream, num_epochs=1, clock=clock)
    run_epoch(line, clock, epoch=0, batches=9, known=True, batch_s=1.0)
    assert max(len(part.rstrip("\n")) for part in stream.getvalue().split("\r")) == 19


def test_close_ends_an_open_line_once() -> None:
    clock, stream = Clock(), Terminal()
    line = ProgressLine(stream, clock=clock)
    line.begin_epoch(0)
    clock.now_s += 1
    line.batch_done(1)
    line.close()
    line.close()
    assert stream.getvalue().count("\n") == 1


def test_a_stream_that_is_gone_does_not_end_the_run() -> None:
    clock, stream = Clock(), io.StringIO()
    line = ProgressLine(stream, clock=clock)
    stream.close()
    run_epoch(line, clock, epoch=0, batches=10, known=True, batch_s=1.0)
    line.close()
