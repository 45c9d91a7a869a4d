import pytest
import torch

from vcc_infuse.calibrators.base import set_top_confidence
from vcc_infuse.calibrators.vcc.reconstruction import Reconstruction, kl_to_prior


def inputs(n: int = 64, classes: int = 5, features: int = 12, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(n, classes, generator=g)).softmax(1), 50 * torch.randn(n, features, generator=g)


def test_kl_is_that_of_torch_distributions():
    mean, log_var = torch.randn(6, 4), torch.randn(6, 4)
    prior = torch.distributions.Normal(torch.zeros(4), torch.ones(4))
    own = torch.distributions.Normal(mean, (log_var / 2).exp())
    oracle = torch.distributions.kl_divergence(own, prior).sum(1)
    assert torch.allclose(kl_to_prior(mean, log_var), oracle, atol=1e-5)


@pytest.mark.parametrize("output", ["scalar", "distribution"])
def test_loss_pushes_a_large_latent_mean_down(output):
    """With the minus sign as printed the gradient would be negative and the loss would have no minimum."""
    probs, features = inputs()
    vae = Reconstruction(5, 12, output=output, latent_dim=4)
    bias = vae.encoder[-1].bias
    bias.data[:4] = 30.0
    target = probs.amax(1) if output == "scalar" else probs
    vae.loss(probs, features, target).backward()
    assert (bias.grad[:4] > 10).all()


@pytest.mark.parametrize("latent_dim", [0, 4], ids=["mlp", "vae"])
@pytest.mark.parametrize("output", ["scalar", "distribution"])
def test_starts_at_the_softmax_confidence_or_at_a_constant(latent_dim, output):
    probs, features = inputs()
    assert torch.allclose(
        Reconstruction(5, 12, output=output, latent_dim=latent_dim, residual=True).confidence(probs, features),
        probs.amax(1),
        atol=1e-4,
    )
    blank = Reconstruction(5, 12, output=output, latent_dim=latent_dim, residual=False).confidence(probs, features)
    assert torch.allclose(blank, torch.full((64,), 0.5 if output == "scalar" else 0.2), atol=1e-4)


@pytest.mark.parametrize("latent_dim", [0, 4], ids=["mlp", "vae"])
@pytest.mark.parametrize("output", ["scalar", "distribution"])
def test_learns_a_target_that_depends_on_the_features(latent_dim, output):
    torch.manual_seed(0)
    probs, features = inputs(256)
    target = torch.where(features[:, 0] > 0, 0.95, 0.55)
    goal = target if output == "scalar" else set_top_confidence(probs, target)
    net = Reconstruction(5, 12, output=output, latent_dim=latent_dim)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    before = (net.confidence(probs, features) - target).abs().mean()
    for _ in range(400):
        optimizer.zero_grad()
        net.loss(probs, features, goal).backward()
        optimizer.step()
    assert (net.confidence(probs, features) - target).abs().mean() < 0.3 * before


def test_vae_samples_in_its_loss_but_not_in_its_confidence():
    probs, features = inputs()
    vae = Reconstruction(5, 12)
    for p in vae.parameters():
        p.data.add_(0.05 * torch.randn_like(p))
    state = torch.get_rng_state()
    one, other = vae.confidence(probs, features), vae.confidence(probs, features)
    assert torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)
    assert vae.loss(probs, features, probs.amax(1)) != vae.loss(probs, features, probs.amax(1))


def test_vae_and_mlp_differ_only_in_the_latent():
    vae, mlp = Reconstruction(5, 12, latent_dim=3), Reconstruction(5, 12, latent_dim=0)
    extra = vae.decoder[0].weight.shape[1] - mlp.decoder[0].weight.shape[1]
    assert extra == 3
    assert vae.encoder[-1].weight.shape[0] == 6
    assert [p.shape[0] for p in vae.decoder.parameters()] == [p.shape[0] for p in mlp.decoder.parameters()]


@pytest.mark.parametrize("latent_dim", [0, 4], ids=["mlp", "vae"])
@pytest.mark.parametrize("output", ["scalar", "distribution"])
def test_confidence_and_loss_together_are_what_each_is_alone(latent_dim, output):
    """Bit for bit, the gradient included, which the confidence must not add to."""
    probs, features = inputs()
    net = Reconstruction(5, 12, output=output, latent_dim=latent_dim)
    for layer in net.parameters():
        layer.data.add_(0.1 * torch.randn_like(layer))
    target = probs.amax(1) if output == "scalar" else probs
    found = []
    for way in ("alone", "together"):
        net.zero_grad()
        torch.manual_seed(1)
        confidence, loss = (
            (net.confidence(probs, features), net.loss(probs, features, target))
            if way == "alone"
            else net.learn(probs, features, target)
        )
        loss.backward()
        found.append([confidence.detach(), loss.detach(), *(layer.grad.clone() for layer in net.parameters())])
        assert confidence.requires_grad == (way == "alone")
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("latent_dim", [0, 4])
def test_coarse_products_change_the_confidence_and_the_gradient_by_little(latent_dim):
    torch.manual_seed(0)
    net = Reconstruction(5, 300, latent_dim=latent_dim)
    for last in (net.decoder[-1], *([net.encoder[-1]] if latent_dim else [])):
        torch.nn.init.normal_(last.weight, std=0.2)  # it starts at zero, where nothing could differ
    probs = torch.randn(64, 5).softmax(1)
    results = []
    for kind in (torch.float32, torch.bfloat16):
        torch.manual_seed(1)
        confidence, loss = net.learn(probs, torch.randn(64, 300), torch.rand(64), kind)
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(net.parameters()))])
        assert confidence.dtype == gradient.dtype == torch.float32
        results.append((confidence, gradient))
    (exact, slope), (rounded, other) = results
    assert 0 < (exact - rounded).abs().max() < 0.02
    assert torch.nn.functional.cosine_similarity(slope, other, dim=0) > 0.99
