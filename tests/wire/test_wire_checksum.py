"""What the checksum of a tensor's bytes has to find."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.wire.checksum import checksum

BLOCK = 8 << 10
SIZES = [1, 8191, 32 << 10, (32 << 10) + 5, 3 * BLOCK * 16 + 1234]


def of(data: bytes | bytearray) -> int:
    return checksum(memoryview(data))


def test_nothing_has_checksum_0():
    assert of(b"") == 0


@pytest.mark.parametrize("num_bytes", SIZES)
def test_it_is_the_crc_of_block_sums(num_bytes):
    data = random.Random(num_bytes).randbytes(num_bytes)
    expected = data
    if num_bytes >= 32 << 10:
        whole = num_bytes - num_bytes % BLOCK
        sums = [
            sum(
                int.from_bytes(data[at : at + 8], "little") for at in range(start, start + BLOCK, 8)
            )
            % (1 << 64)
            for start in range(0, whole, BLOCK)
        ]
        expected = b"".join(value.to_bytes(8, "little") for value in sums) + data[whole:]
    assert of(data) == zlib.crc32(expected)


@pytest.mark.parametrize("num_bytes", SIZES)
def test_it_does_not_depend_on_where_the_bytes_lie(num_bytes):
    data = random.Random(1).randbytes(num_bytes)
    assert checksum(memoryview(b"x" + data)[1:]) == of(data)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(SIZES), st.integers(0), st.integers(1, 255))
def test_one_changed_byte_shows(num_bytes, where, change):
    data = bytearray(random.Random(2).randbytes(num_bytes))
    before = of(data)
    data[where % num_bytes] ^= change
    assert of(data) != before


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([64, BLOCK, 3 * BLOCK]), st.integers(0, 30), st.integers(0, 30))
def test_pieces_that_changed_places_show(size, first, second):
    data = bytearray(random.Random(3).randbytes(31 * 3 * BLOCK))
    before = of(data)
    # Pieces begin in blocks of their own: within a block an order of words does not show.
    a, b = first * 3 * BLOCK, second * 3 * BLOCK
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    assert (of(data) == before) == (a == b)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200_000), st.integers(0, 200_000))
def test_bytes_that_kept_their_old_contents_show(length, start):
    sent, old = random.Random(4).randbytes(400_000), bytes(400_000)
    got = sent[:start] + old[start : start + length] + sent[start + length :]
    assert of(got) != of(sent)


def test_a_shift_shows():
    data = random.Random(5).randbytes(300_000)
    for shift in (1, 8, 64, BLOCK):
        assert of(data[shift:] + data[:shift]) != of(data)
