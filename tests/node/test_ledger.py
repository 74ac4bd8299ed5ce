"""What the ledger counts, and that it tells apart what differs."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest.errors import ProtocolError
from ravnest.node.ledger import Account, Entry, Ledger, NumberRuns, differing, in_words, numbers_in
from ravnest.node.microbatches import Rows, deal_rows, whole_batch
from ravnest.plan.dealing import deal


def runs_of(numbers: Iterable[int], period: int = 1) -> NumberRuns:
    runs = NumberRuns(period)
    for number in numbers:
        runs.add(number)
    return runs


def account_of(entries: Iterable[Entry]) -> Account:
    ledger = Ledger()
    for entry in entries:
        ledger.take(entry)
    return ledger.taken


@given(st.lists(st.integers(0, 30)), st.integers(1, 4))
def test_runs_keep_every_number_as_often_as_it_came(numbers: list[int], period: int) -> None:
    assert sorted(numbers_in(runs_of(numbers, period).freeze())) == sorted(numbers)


@given(st.lists(st.floats(1, 9), min_size=1, max_size=4), st.integers(0, 400))
def test_a_cluster_s_share_is_as_short_as_its_turns(rates: list[float], total: int) -> None:
    """Not as long as the epoch: a million batches are as few runs as a hundred."""
    dealing = deal(rates)
    for cluster in range(len(rates)):
        own = [i for i in range(total) if dealing[i % len(dealing)] == cluster]
        runs = runs_of(own, len(dealing)).freeze()
        assert len(runs) <= dealing.count(cluster)
        assert sorted(numbers_in(runs)) == own


def test_runs_in_words() -> None:
    assert in_words(runs_of([]).freeze()) == ""
    assert in_words(runs_of([*range(9), 11, *range(13, 15)]).freeze()) == "0-8, 11, 13-14"
    assert in_words(runs_of(range(1, 9, 2), 2).freeze()) == "1-7:2"
    assert in_words(runs_of(range(9), 2).freeze()) == "0-8", "all batches, dealt to one of two"


ENTRIES = [Entry(batch, rows) for batch in range(4) for rows in deal_rows(5, 2)]
OTHER_ROWS = [*ENTRIES[:-1], Entry(3, Rows(3, 4, 5))]
CHANGES = {
    "lost": ENTRIES[:3] + ENTRIES[4:],
    "lost as a whole": ENTRIES[:2] + ENTRIES[4:],
    "doubled": [*ENTRIES, ENTRIES[-1]],
    "in another order": [*ENTRIES[:-2], ENTRIES[-1], ENTRIES[-2]],
    "of other rows": OTHER_ROWS,
    "of another batch": [*ENTRIES[:-1], Entry(2, ENTRIES[-1].rows)],
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_the_same_is_another_account(change: str) -> None:
    sent, trained = account_of(ENTRIES), account_of(CHANGES[change])
    assert sent == account_of(ENTRIES)
    assert sent != trained
    assert Account.of(trained.details()) == trained


def test_batches_that_only_one_side_has_are_named() -> None:
    sent, trained = account_of(ENTRIES), account_of(CHANGES["lost as a whole"])
    assert differing(sent, trained) == {"sent but not trained": "1"}
    assert differing(trained, sent) == {"trained but not sent": "1"}
    assert differing(sent, sent) == {}


def test_a_microbatch_is_trained_by_the_step_that_it_is_part_of() -> None:
    ledger = Ledger()
    for entry in ENTRIES:
        ledger.take(entry)
        ledger.complete(entry)
        if entry.batch == 2:
            ledger.step(7, is_left_out=False)
    ledger.take(Entry(9, whole_batch(0)))
    record = ledger.close()
    assert record.taken.num_samples == 20
    assert record.trained.num_samples == 15, "batch 3 was not in any step"
    assert record.empty == ((9, 9, 1),)
    assert ledger.taken.num_microbatches == 0, "the next epoch begins"


def test_steps_left_out_and_batches_trained_again_are_named() -> None:
    ledger = Ledger()
    for step, batch in enumerate([0, 1, 1, 2]):
        for rows in deal_rows(4, 2):
            ledger.take(Entry(batch, rows))
            ledger.complete(Entry(batch, rows))
        ledger.step(step, is_left_out=batch == 2)
    record = ledger.close()
    assert in_words(record.left_out) == "2"
    assert in_words(record.repeated) == "1"
    assert in_words(record.steps) == "0-3"
    assert record.trained.num_samples == 16


@pytest.mark.parametrize("details", [None, [], {}, {"batches": [[0]], "num_microbatches": 1}])
def test_what_is_no_account_is_refused(details: object) -> None:
    with pytest.raises(ProtocolError, match="no account of an epoch"):
        Account.of(details)
