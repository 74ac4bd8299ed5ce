"""The two directions of a link: when a peer counts as reconnecting, whatever order news come in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transport_support import QUICK

from ravnest.errors import ProtocolError
from ravnest.transport.link import INCARNATION_BYTES, Link
from ravnest.transport.peer_state import PeerState
from ravnest.transport.peers import PeerTable

LANES = ("", "forward")


def up() -> tuple[Link, PeerTable]:
    """A link both of whose directions are up on their first connection."""
    peers = PeerTable(0, QUICK, locate=str, probe=str)
    link = Link(0, 1, peers, 30.0, lambda: None)
    link.connecting(LANES)
    link.greeted(1, is_control=True)
    for lane in LANES:
        link.welcomed(1, lane)
    assert peers.state(1) is PeerState.CONNECTED
    return link, peers


def test_a_direction_is_back_when_all_its_lanes_go_on():
    link, peers = up()
    link.outgoing_broke(1, "cut")
    assert link.connecting(LANES) == 2
    link.welcomed(2, "forward")
    assert peers.state(1) is PeerState.RECONNECTING
    link.welcomed(2, "")
    assert peers.state(1) is PeerState.CONNECTED


def test_both_directions_have_to_be_back():
    link, peers = up()
    link.outgoing_broke(1, "cut")
    link.incoming_broke(1, "cut")
    link.connecting(LANES)
    for lane in LANES:
        link.welcomed(2, lane)
    link.greeted(2, is_control=False)
    assert peers.state(1) is PeerState.RECONNECTING
    link.greeted(2, is_control=True)
    assert peers.state(1) is PeerState.CONNECTED


def test_news_of_replaced_connections_are_ignored():
    link, peers = up()
    link.connecting(LANES)
    for lane in LANES:
        link.welcomed(2, lane)
    link.greeted(2, is_control=False)
    link.greeted(1, is_control=True)  # late: says nothing of the newer one
    link.incoming_broke(1, "the old one")
    link.outgoing_broke(1, "the old one")
    assert peers.state(1) is PeerState.CONNECTED
    link.incoming_broke(2, "cut")
    link.greeted(3, is_control=False)
    link.greeted(2, is_control=True)
    assert peers.state(1) is PeerState.RECONNECTING


def test_another_process_is_refused_and_the_first_goes_on():
    link, peers = up()
    link.recognise(b"a" * INCARNATION_BYTES)
    with pytest.raises(ProtocolError, match="again, from another process"):
        link.recognise(b"b" * INCARNATION_BYTES)
    assert peers.state(1) is PeerState.CONNECTED
    link.recognise(b"a" * INCARNATION_BYTES)


@given(
    st.lists(
        st.sampled_from(["out breaks", "in breaks", "out connects", "in connects"]), max_size=30
    )
)
def test_a_peer_is_connected_just_when_both_directions_are(events):
    link, peers = up()
    outgoing, incoming = 1, 1
    is_out, is_in = True, True
    for event in events:
        match event:
            case "out breaks":
                link.outgoing_broke(outgoing, "cut")
                is_out = False
            case "in breaks":
                link.incoming_broke(incoming, "cut")
                is_in = False
            case "out connects" if not is_out:
                outgoing = link.connecting(LANES)
                for lane in LANES:
                    link.welcomed(outgoing, lane)
                is_out = True
            case "in connects":
                incoming += 1
                link.greeted(incoming, is_control=True)
                is_in = True
        expected = PeerState.CONNECTED if is_out and is_in else PeerState.RECONNECTING
        assert peers.state(1) is expected
        assert (link.left_s() is None) == (is_out and is_in)
