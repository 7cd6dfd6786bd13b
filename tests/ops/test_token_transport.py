"""Token transport: the ten lines of its definition, and every property that it should have."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ricci_gpu.errors import InputError, SettingError
from ricci_gpu.ops.maxsim import maxsim_from_maxima
from ricci_gpu.ops.token_transport import KEEP_TOLERANCE, token_transport

INF, NAN = float("inf"), float("nan")
T = 0.15


def _maxima(seed: int, batch: int, tokens: int, chunks: int) -> torch.Tensor:
    """Similarities as MaxSim sees them: a few chunks match a token well, most do not."""
    rng = np.random.default_rng(seed)
    background = rng.uniform(0.1, 0.5, size=(batch, tokens, chunks))
    match = 0.5 * (rng.random((batch, tokens, chunks)) < 0.15)
    return torch.from_numpy(background + match)


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bool)


def _transport(maxima: torch.Tensor, **settings_):
    batch, tokens, chunks = maxima.shape
    return token_transport(maxima, _ones(batch, tokens), _ones(batch, chunks), **settings_)


def _definition(maxima: np.ndarray, mass: np.ndarray, temperature: float, steps: int):
    """The rule as it is published, for one query: log masses and the masses."""
    log_pi = np.full(maxima.shape[1], -np.log(maxima.shape[1]))
    for _ in range(steps):
        exponent = maxima / temperature + log_pi
        plan = np.exp(exponent - exponent.max(axis=1, keepdims=True))
        plan /= plan.sum(axis=1, keepdims=True)
        log_pi = np.log(mass @ plan)
    return log_pi


def _objective(maxima: np.ndarray, mass: np.ndarray, log_pi: np.ndarray, temperature: float):
    """F(pi) = -T sum_i a_i log sum_c pi_c exp(A_ic / T)."""
    return -temperature * mass @ np.log(np.exp(maxima / temperature + log_pi).sum(axis=1))


@pytest.mark.parametrize("steps", [1, 5, 20])
@pytest.mark.parametrize("temperature", [0.05, 0.15, 1.0])
def test_masses_follow_the_definition(steps, temperature):
    maxima = _maxima(0, 8, 7, 20)
    rng = np.random.default_rng(1)
    mass = rng.random((8, 7))
    result = _transport(
        maxima, temperature=temperature, steps=steps, token_mass=torch.from_numpy(mass)
    )
    for row in range(8):
        share = mass[row] / mass[row].sum()
        expected = _definition(maxima[row].numpy(), share, temperature, steps)
        np.testing.assert_allclose(result.log_mass[row], expected, rtol=1e-10)
        np.testing.assert_allclose(result.share[row], 20 * np.exp(expected), rtol=1e-10)
        contrast = -_objective(maxima[row].numpy(), share, expected, temperature)
        contrast -= (share @ maxima[row].numpy()).mean()
        assert float(result.abstention[row]) == pytest.approx(contrast, rel=1e-10)


@settings(max_examples=25)
@given(st.integers(0), st.integers(1, 8), st.integers(1, 12), st.sampled_from([0.03, 0.15, 2.0]))
def test_the_objective_decreases_at_every_step_and_masses_sum_to_one(
    seed, tokens, chunks, temperature
):
    maxima = _maxima(seed, 1, tokens, chunks)
    a, uniform = maxima[0].numpy(), np.full(tokens, 1 / tokens)
    last = _objective(a, uniform, np.full(chunks, -np.log(chunks)), temperature)
    for steps in range(1, 9):
        result = _transport(maxima, temperature=temperature, steps=steps)
        now = _objective(a, uniform, result.log_mass[0].numpy(), temperature)
        assert now <= last + 1e-13
        assert float(result.log_mass.exp().sum()) == pytest.approx(1.0, abs=1e-12)
        assert float(result.share.mean()) == pytest.approx(1.0, abs=1e-12)
        last = now


@settings(max_examples=25)
@given(st.integers(0), st.integers(1, 8), st.integers(1, 25), st.integers(1, 6), st.booleans())
def test_at_least_one_chunk_reaches_the_mean(seed, tokens, chunks, steps, equal):
    """So a cutoff of 1 never empties a pool, also where float32 leaves all just under it."""
    maxima = _maxima(seed, 1, tokens, chunks)
    if equal:
        maxima = maxima[:, :, :1].expand(-1, -1, chunks)
    for dtype in (torch.float64, torch.float32):
        share = _transport(maxima.to(dtype), steps=steps).share
        kept = share >= 1.0 - KEEP_TOLERANCE
        assert kept.any()
        if equal:
            assert kept.all()


def test_permuting_chunks_or_tokens_permutes_or_keeps_the_masses():
    maxima = _maxima(2, 6, 9, 20)
    rng = np.random.default_rng(3)
    chunks, tokens = (torch.from_numpy(rng.permutation(n)) for n in (20, 9))
    plain = _transport(maxima)
    moved = _transport(maxima[:, tokens][:, :, chunks])
    torch.testing.assert_close(moved.log_mass, plain.log_mass[:, chunks], rtol=0, atol=1e-12)
    torch.testing.assert_close(moved.abstention, plain.abstention, rtol=0, atol=1e-12)
    kept = [r.share >= 1 - KEEP_TOLERANCE for r in (moved, plain)]
    assert torch.equal(kept[0], kept[1][:, chunks])


@pytest.mark.parametrize("steps", [1, 2, 5, 9])
def test_a_single_token_gives_a_softmax_at_the_temperature_over_the_steps(steps):
    maxima = _maxima(4, 10, 1, 20)
    expected = (steps * maxima[:, 0] / T).softmax(dim=1)
    torch.testing.assert_close(
        _transport(maxima, temperature=T, steps=steps).log_mass.exp(), expected
    )


def test_one_step_at_a_high_temperature_ranks_like_maxsim():
    maxima = _maxima(5, 50, 8, 20)
    scores = maxsim_from_maxima(maxima, _ones(50, 8))
    masses = _transport(maxima, temperature=1e6, steps=1).log_mass
    assert torch.equal(masses.argsort(dim=1), scores.argsort(dim=1))


def test_float32_and_float64_decide_alike():
    """On 4,000 decisions, all of them."""
    maxima = _maxima(6, 200, 12, 20)
    double = _transport(maxima).share >= 1 - KEEP_TOLERANCE
    single = _transport(maxima.float())
    assert single.log_mass.dtype == torch.float32
    assert torch.equal(single.share >= 1 - KEEP_TOLERANCE, double)


def test_identical_chunks_get_equal_masses_and_share_what_one_would_get():
    maxima = _maxima(7, 5, 6, 10)
    alone = _transport(maxima, steps=1)
    doubled = torch.cat([maxima, maxima[:, :, :1]], dim=2)
    result = _transport(doubled)
    torch.testing.assert_close(result.log_mass[:, 0], result.log_mass[:, 10], rtol=0, atol=1e-12)
    shared = _transport(doubled, steps=1)
    assert (shared.log_mass.exp()[:, 0] < alone.log_mass.exp()[:, 0]).all()


def test_a_token_that_every_chunk_matches_alike_decides_nothing():
    maxima = _maxima(8, 5, 4, 10)
    common = torch.cat([maxima, torch.full((5, 1, 10), 0.9, dtype=torch.float64)], dim=1)
    assert torch.equal(
        _transport(common, steps=1).log_mass.argsort(dim=1),
        _transport(maxima, steps=1).log_mass.argsort(dim=1),
    )


def test_padding_changes_nothing_whatever_it_holds():
    maxima = _maxima(9, 4, 6, 10)
    tokens, chunks = torch.tensor([6, 3, 1, 5]), torch.tensor([10, 4, 7, 1])
    token_mask = torch.arange(6)[None] < tokens[:, None]
    chunk_mask = torch.arange(10)[None] < chunks[:, None]
    real = token_mask[:, :, None] & chunk_mask[:, None, :]
    mass = torch.from_numpy(np.random.default_rng(10).random((4, 6)))
    results = []
    for poison in (0.0, NAN, INF, -INF):
        results.append(
            token_transport(
                torch.where(real, maxima, poison),
                token_mask,
                chunk_mask,
                token_mass=torch.where(token_mask, mass, poison),
            )
        )
    for other in results[1:]:
        for field in range(3):
            assert torch.equal(other[field], results[0][field])
    assert (results[0].log_mass[~chunk_mask] == -INF).all()
    assert (results[0].share[~chunk_mask] == 0).all()
    for b in range(4):
        alone = _transport(
            maxima[b : b + 1, : tokens[b], : chunks[b]], token_mass=mass[b : b + 1, : tokens[b]]
        )
        torch.testing.assert_close(
            results[0].log_mass[b, : chunks[b]], alone.log_mass[0], rtol=0, atol=1e-12
        )
        torch.testing.assert_close(results[0].abstention[b], alone.abstention[0])


def test_empty_chunks_receive_nothing_and_the_mean_counts_them():
    maxima = _maxima(11, 3, 5, 8)
    maxima[:, :, [2, 6]] = -INF
    result = _transport(maxima)
    assert (result.share[:, [2, 6]] == 0).all()
    assert (result.log_mass[:, [2, 6]] == -INF).all()
    torch.testing.assert_close(result.share.sum(dim=1), torch.full((3,), 8.0).double())
    others = [0, 1, 3, 4, 5, 7]
    without = _transport(maxima[:, :, others])
    torch.testing.assert_close(result.log_mass[:, others], without.log_mass)
    assert torch.isfinite(result.abstention).all()


def test_a_query_without_tokens_or_with_empty_chunks_only_gives_every_chunk_the_mean():
    maxima = _maxima(12, 3, 4, 5)
    maxima[1] = -INF
    token_mask = _ones(3, 4)
    token_mask[0] = False
    result = token_transport(maxima, token_mask, _ones(3, 5))
    torch.testing.assert_close(result.share[:2], torch.ones(2, 5).double())
    assert torch.isnan(result.abstention).tolist() == [True, True, False]
    alone = _transport(maxima[2:])
    assert torch.equal(result.log_mass[2], alone.log_mass[0])


def test_tokens_without_mass_do_not_count():
    maxima = _maxima(13, 4, 5, 9)
    mass = torch.tensor([[1.0, 0.0, 2.0, 0.0, 1.0]]).double().expand(4, 5)
    some = _transport(maxima, token_mass=mass)
    kept = maxima[:, [0, 2, 4]]
    expected = _transport(kept, token_mass=mass[:, [0, 2, 4]])
    torch.testing.assert_close(some.log_mass, expected.log_mass)
    torch.testing.assert_close(some.abstention, expected.abstention)
    nothing = _transport(maxima, token_mass=torch.zeros(4, 5).double())
    torch.testing.assert_close(nothing.share, torch.ones(4, 9).double())


def test_a_pool_with_a_match_has_a_higher_contrast_than_one_without():
    rng = np.random.default_rng(14)
    background = torch.from_numpy(rng.uniform(0.2, 0.4, size=(40, 8, 20)))
    matched = background.clone()
    matched[:, :, 3] += 0.4
    assert (_transport(matched).abstention > _transport(background).abstention).all()


@pytest.mark.parametrize("where", ["one entry", "a whole token"])
def test_nan_in_a_real_entry_is_flagged_and_stays_in_its_query(where):
    maxima = _maxima(15, 3, 4, 5)
    maxima[1, 2, 0 if where == "one entry" else slice(None)] = NAN
    result = _transport(maxima)
    assert torch.isnan(result.log_mass).any(dim=1).tolist() == [False, True, False]
    assert torch.isnan(result.abstention).tolist() == [False, True, False]


def test_trace_holds_the_plan_of_every_step():
    maxima = _maxima(16, 3, 4, 5)
    result = _transport(maxima, steps=3, trace=True)
    assert len(result.trace) == 3
    for steps, plan in enumerate(result.trace, start=1):
        torch.testing.assert_close(plan.sum(dim=2), torch.ones(3, 4).double())
        torch.testing.assert_close(plan.mean(dim=1), _transport(maxima, steps=steps).log_mass.exp())
    assert _transport(maxima).trace == []


@pytest.mark.parametrize(
    ("setting", "value", "rule"),
    [
        ("temperature", 0.0, "`temperature` must be greater than 0; got 0.0"),
        ("temperature", float("nan"), "`temperature` must be greater than 0; got nan"),
        ("steps", 0, "`steps` must be at least 1; got 0"),
    ],
)
def test_impossible_settings_are_refused(setting, value, rule):
    with pytest.raises(SettingError, match=rule):
        _transport(_maxima(0, 1, 2, 3), **{setting: value})


def test_negative_token_masses_are_refused():
    with pytest.raises(InputError, match=r"`token_mass` must not be negative; got -1"):
        _transport(_maxima(0, 1, 2, 3), token_mass=torch.tensor([[1.0, -1.0]]).double())
