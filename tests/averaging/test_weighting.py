from hypothesis import given
from hypothesis import strategies as st

from ravnest.averaging.weighting import weighting_of

counts = st.lists(st.integers(0, 10**12), min_size=1, max_size=6).filter(any)


@given(counts)
def test_factors_stay_within_one_and_keep_proportions(num_samples: list[int]) -> None:
    weightings = [weighting_of(num_samples, rank) for rank in range(len(num_samples))]
    total = weightings[0].total
    assert all(w.total == total for w in weightings)
    assert 0.5 < total <= 1.0
    for weighting, count in zip(weightings, num_samples, strict=True):
        assert 0.0 <= weighting.own <= total
        share = count / sum(num_samples)
        assert abs(weighting.own / total - share) <= 1e-15 * share


def test_two_equal_members_need_no_division() -> None:
    weighting = weighting_of([17, 17], 1)
    assert (weighting.own, weighting.total) == (0.5, 1.0)


def test_a_lone_contributor_passes_unchanged() -> None:
    assert weighting_of([0, 32, 0], 1).own == weighting_of([0, 32, 0], 0).total == 1.0
    assert weighting_of([0, 32, 0], 2).own == 0.0
