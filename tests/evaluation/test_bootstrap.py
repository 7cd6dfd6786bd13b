"""The bootstrap against closed forms."""

import numpy as np
import pytest

from ricci_gpu.evaluation.bootstrap import (
    draws,
    mean_difference,
    paired_difference,
    resampled_means,
)


def test_resampled_means_have_the_variance_of_a_mean():
    values = np.random.default_rng(0).gamma(2.0, size=200)
    drawn = resampled_means(values, seed=1)
    assert drawn.mean() == pytest.approx(values.mean(), abs=4 * values.std() / np.sqrt(200 * 1e4))
    assert drawn.std() == pytest.approx(values.std() / np.sqrt(200), rel=0.03)


def test_a_share_of_ones_has_binomial_percentiles():
    """Of 100 queries 30 differ by 1: a resample has a binomial count, n = 100, p = 0.3."""
    from scipy.stats import binom

    found = paired_difference(np.r_[np.ones(30), np.zeros(70)], np.zeros(100), seed=0)
    assert found.mean == pytest.approx(0.3)
    assert found.low == pytest.approx(binom.ppf(0.025, 100, 0.3) / 100, abs=0.011)
    assert found.high == pytest.approx(binom.ppf(0.975, 100, 0.3) / 100, abs=0.011)
    assert found.queries == 100


def test_pairing_removes_what_both_have_in_common():
    hard = np.random.default_rng(2).normal(size=300) * 10
    found = paired_difference(hard + 1, hard, seed=0)
    assert found.interval == pytest.approx([1, 1])


def test_every_dataset_counts_the_same():
    few, many = np.ones(10), np.zeros(1000)
    found = mean_difference([few, many], seed=0)
    assert found.mean == found.low == found.high == 0.5
    assert found.queries == 1010
    one = np.random.default_rng(3).normal(size=50)
    both = mean_difference([one, one], seed=0)
    alone = mean_difference([one], seed=0)
    shrunk = (both.high - both.low) / (alone.high - alone.low)
    assert shrunk == pytest.approx(1 / np.sqrt(2), rel=0.05)


def test_draws_depend_on_the_seed_only():
    assert np.array_equal(draws(7, 1, 50), draws(7, 1, 50))
    assert not np.array_equal(draws(7, 1, 50), draws(7, 2, 50))
    assert (draws(7, 1, 50).sum(axis=1) == 7).all()
