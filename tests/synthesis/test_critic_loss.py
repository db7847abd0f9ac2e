"""The critic's loss of one record, by functorch and written once more with autograd."""

import pytest
import torch

from idpgan.models.losses import critic_wasserstein, gradient_penalty, interpolate
from idpgan.privacy.captured_gradients import per_example_gradients
from idpgan.synthesis.critic_loss import CriticLoss
from tests.privacy.test_dpsgd import KINDS, critic_of, records


def plain_loss(critic, kind, paired, mismatch, real, label, fake, alpha, wrong):
    """The loss of records written once more, with autograd and not with functorch."""
    labels = label if critic.num_classes else None
    at_real, at_fake = critic(real, labels), critic(fake, labels)
    at_wrong = critic(real, wrong if critic.num_classes else None)
    if kind == "non-saturating":
        loss = torch.nn.functional.softplus(-at_real).sum()
        loss = loss + mismatch * torch.nn.functional.softplus(at_wrong).sum()
        return loss + torch.nn.functional.softplus(at_fake).sum() * paired
    penalty = gradient_penalty(lambda images: critic(images, labels), interpolate(real, fake, alpha))
    wasserstein = critic_wasserstein(at_real, at_fake) * len(real) if paired else -at_real.sum()
    return wasserstein + 10 * penalty.sum() + mismatch * at_wrong.sum()


@pytest.mark.parametrize("num", [0, 1, 5])
@pytest.mark.parametrize(("conditional", "mismatch"), [(True, 0.0), (True, 0.5), (False, 0.0)])
@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_a_loop_over_batches_of_one(kind, paired, conditional, mismatch, num):
    critic, batch = critic_of(conditional), records(num)
    loss = CriticLoss(critic, kind, penalty=10.0, paired=paired, mismatch=mismatch)
    gradients, losses = per_example_gradients(loss.of_record, dict(critic.named_parameters()), batch)
    assert losses.shape == (num,)
    for i in range(num):
        value = plain_loss(critic, kind, paired, mismatch, *(part[i : i + 1] for part in batch))
        expected = torch.autograd.grad(value, list(critic.parameters()), allow_unused=True)
        assert losses[i].item() == pytest.approx(value.item(), abs=1e-5)
        for (name, weight), wanted in zip(critic.named_parameters(), expected, strict=True):
            wanted = torch.zeros_like(weight) if wanted is None else wanted
            assert torch.allclose(gradients[name][i], wanted, rtol=1e-5, atol=1e-5)
    assert all(gradients[name].shape == (num, *weight.shape) for name, weight in critic.named_parameters())
    if num > 1:  # negative control: the gradient of another record is not it
        assert not torch.allclose(gradients["head.weight"][0], gradients["head.weight"][1], rtol=1e-2, atol=1e-2)


def test_gradients_leave_nothing_on_the_critic():
    critic = critic_of()
    loss = CriticLoss(critic, "wgan-gp", penalty=10.0, paired=True)
    before = [weight.clone() for weight in critic.parameters()]
    per_example_gradients(loss.of_record, dict(critic.named_parameters()), records(3))
    assert all(map(torch.equal, before, critic.parameters()))
    assert all(weight.grad is None and not hasattr(weight, "grad_sample") for weight in critic.parameters())
