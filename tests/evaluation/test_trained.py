import numpy as np
import torch

from ricci_gpu.evaluation.rerankers import PairReranker
from ricci_gpu.evaluation.trained import PairModel, head_signals, pair_signals, with_head
from ricci_gpu.models.late_interaction import LateInteraction
from ricci_gpu.ops.token_transport import token_transport


class Rotation(LateInteraction):
    """A head that turns all vectors in the same way, which leaves every product as it was."""

    name, source, width, base = "rotation", "a test", 16, "words-1"
    fingerprint = "rotation-1"

    def __init__(self):
        square = np.random.default_rng(0).normal(size=(16, 16))
        self.matrix = torch.from_numpy(np.linalg.qr(square)[0]).float()

    def project(self, token_vectors):
        return token_vectors @ self.matrix

    def encode_queries(self, texts, *rest, **options):
        raise AssertionError("no text needs to be encoded")

    encode_documents = query_words = document_words = encode_queries


def test_a_head_projects_what_is_there(pools_of, store):
    pools = pools_of()
    turned = with_head(pools, Rotation(), store)
    real = pools.token_mask[..., None].expand_as(pools.maxima)
    assert torch.equal(turned.token_mask, pools.token_mask)
    assert torch.allclose(turned.maxima[real], pools.maxima[real], atol=2e-3)  # float16 documents
    first, second = head_signals(Rotation(), store)
    assert first.trained
    assert second.trained
    assert torch.allclose(first.score(pools), pools.maxsim, atol=2e-3)
    mass = token_transport(turned.maxima, turned.token_mask, turned.batch.candidate_mask)
    assert torch.equal(second.score(pools), mass.log_mass)


def test_models_that_are_asked_about_a_sample_are_no_step_of_the_ladder(store):
    models = [
        PairModel("everywhere", lambda pairs: [0.0] * len(pairs), trained=True),
        PairModel("sampled", lambda pairs: [0.0] * len(pairs), sample=60),
    ]
    rerankers = {each.name: PairReranker(each.name, each.score, store) for each in models}
    [signal] = pair_signals(models, rerankers)
    assert signal.score is rerankers["everywhere"]
    assert signal.name == "everywhere"
    assert signal.trained
    assert signal.depth == 20
