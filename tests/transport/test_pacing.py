"""How fast a connection over a long link may send."""

from __future__ import annotations

import contextlib
import socket

from hypothesis import given
from hypothesis import strategies as st

from ravnest.transport.pacing import ABOVE, LEAST, Pace, Pacing, Reading

MBPS = 1e6 / 8
PLANNED = 100 * MBPS


def test_it_starts_a_little_above_the_plan() -> None:
    assert Pace(PLANNED, 0.0).rate == ABOVE * PLANNED


def test_a_faster_link_is_found() -> None:
    """A link of 400 Mbps that the plan takes for one of 100: full within some seconds."""
    pace, now_s = Pace(PLANNED, 0.0), 0.0
    while pace.rate < 400 * MBPS:
        now_s += 0.1
        pace.look(Reading(0.04, 0.04, pace.rate), now_s)
    assert now_s < 4.0


def test_a_queue_takes_it_back_to_the_plan() -> None:
    pace = Pace(PLANNED, 0.0)
    assert pace.look(Reading(0.041, 0.04, pace.rate), 1.0)
    assert pace.rate > ABOVE * PLANNED
    assert pace.look(Reading(0.065, 0.04, PLANNED), 1.1)
    assert pace.rate == ABOVE * PLANNED
    assert not pace.look(Reading(0.3, 0.04, PLANNED / 10), 1.2)
    assert pace.rate == ABOVE * PLANNED


def test_an_absurdly_slow_plan_is_not_kept_to() -> None:
    assert Pace(1.0, 0.0).rate == LEAST


def test_a_queue_on_a_faster_link_takes_it_back_to_that() -> None:
    pace = Pace(PLANNED, 0.0)
    for second in range(1, 6):
        pace.look(Reading(0.04, 0.04, pace.rate), float(second))
    assert pace.rate > 1000 * MBPS
    assert pace.look(Reading(0.2, 0.04, 400 * MBPS), 6.0)
    assert pace.rate == ABOVE * 400 * MBPS


def test_who_sends_little_is_not_raised() -> None:
    pace = Pace(PLANNED, 0.0)
    assert not pace.look(Reading(0.04, 0.04, PLANNED / 2), 1.0)


@given(
    st.lists(
        st.tuples(st.floats(0.005, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1e9)), max_size=30
    )
)
def test_it_is_never_below_the_plan(seen: list[tuple[float, float, float]]) -> None:
    pace = Pace(PLANNED, 0.0)
    for number, (least_s, waiting_s, delivered) in enumerate(seen):
        before = pace.rate
        changed = pace.look(Reading(least_s + waiting_s, least_s, delivered), 0.1 * number)
        assert changed == (pace.rate != before)
        assert pace.rate >= ABOVE * PLANNED


def test_short_links_are_left_alone() -> None:
    """Loopback, where a plan says 1 Mbps: ten megabytes are there at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sending = socket.create_connection(server.getsockname())
        taking, _ = server.accept()
    with sending, taking:
        pacing = Pacing(sending, 1 * MBPS)
        buffer, left = bytearray(1 << 16), 10 << 20
        whole = memoryview(bytes(1 << 20))
        assert list(pacing.slices(whole)) == [whole]
        taking.settimeout(5.0)
        sending.setblocking(False)
        while left:
            with contextlib.suppress(BlockingIOError):
                sending.send(buffer[: min(left, len(buffer))])
            left -= taking.recv_into(buffer, min(left, len(buffer)))
