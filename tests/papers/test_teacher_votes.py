"""PATE: counts move no more than is proven, the price is that of all answers, the noise decides as it should."""

import itertools
import math

import pytest
import torch
from papers.literature.teacher_votes import STEPS, TeacherVotes

from idpgan.errors import InputError
from idpgan.privacy import Noise, Relation, Unit, compose_epsilon
from idpgan.privacy.mechanisms import Gaussian


def test_one_teacher_moves_the_counts_of_an_image_as_far_as_is_proven_and_two_move_them_farther():
    """All ensembles of three teachers and three classes, each beside all whose first teacher, or first two, differ."""
    votes = TeacherVotes(1, 3, "gaussian", 1.0)
    every = torch.tensor(list(itertools.product(range(3), repeat=3)))

    def farthest(changed):
        found = torch.stack(
            [
                votes.exact(one[:, None]) - votes.exact(other[:, None])
                for one, other in itertools.product(every, every)
                if torch.equal(one[changed:], other[changed:])
            ]
        ).double()
        return found.abs().sum((1, 2)).max().item(), found.square().sum((1, 2)).max().sqrt().item()

    of_laplace = TeacherVotes(1, 3, "laplace", 1.0).mechanism.sensitivity
    l1, l2 = farthest(1)
    assert (l1, l2) == (of_laplace, pytest.approx(votes.mechanism.sensitivity))
    assert l2 <= votes.mechanism.sensitivity
    assert farthest(2)[0] > l1


def test_the_price_is_that_of_all_answers():
    votes = TeacherVotes.calibrated(200, 10, epsilon=2.0, delta=1e-5)
    assert compose_epsilon([votes.event], 1e-5) == pytest.approx(2.0, rel=1e-3)
    joint = Gaussian(math.sqrt(400), votes.noise_std / math.sqrt(400), Unit.IMAGE, Relation.ZERO_OUT)  # as one vector
    assert compose_epsilon([votes.event], 1e-5) == pytest.approx(compose_epsilon([joint.event], 1e-5), rel=1e-5)
    assert compose_epsilon([TeacherVotes(50, 10, "laplace", 100.0).event], 0.0) == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_the_noise_turns_a_vote_as_often_as_it_should(law):
    """Two classes, 6 to 4 votes: the second wins where the difference of two noises is above 2."""
    num = 20_000
    votes = torch.tensor([0] * 6 + [1] * 4)[:, None].expand(10, num)
    for used, agrees in ((1.5, True), (0.75, False)):  # half of the noise is noticed
        scale = TeacherVotes(num, 2, law, 1.5).mechanism.scale / STEPS
        if law == "gaussian":
            expected = 0.5 * math.erfc(2 / (scale * math.sqrt(2) * math.sqrt(2)))
        else:  # of the difference of two Laplace numbers of scale b: (1 + x / 2b) exp(-x / b) / 2 lies above x
            expected = 0.5 * (1 + 1 / scale) * math.exp(-2 / scale)
        found = TeacherVotes(num, 2, law, used).release(votes, Noise.fixed(0)).double().mean().item()
        assert (abs(found - expected) < 4 * math.sqrt(0.25 / num)) == agrees


def test_without_much_noise_the_most_votes_win():
    votes = torch.tensor([[0, 2], [0, 2], [1, 2]])
    assert TeacherVotes(2, 3, "gaussian", 1e-3).release(votes, Noise.fixed(0)).tolist() == [0, 2]


@pytest.mark.parametrize(
    "votes",
    [
        torch.tensor([[0, 3]]),
        torch.tensor([[-1, 0]]),
        torch.tensor([[0.0, 1.0]]),
        torch.tensor([[0]]),
        torch.zeros(0, 2),
    ],
)
def test_votes_that_do_not_exist_are_refused(votes):
    with pytest.raises(ValueError, match="vote"):
        TeacherVotes(2, 3, "gaussian", 1.0).release(votes, Noise.fixed(0))


def test_no_questions_one_class_and_an_impossible_budget_are_refused():
    for questions, classes, law in ((0, 2, "gaussian"), (1, 1, "gaussian"), (1, 2, "cauchy")):
        with pytest.raises(InputError, match="questions"):
            TeacherVotes(questions, classes, law, 1.0)
    with pytest.raises(InputError, match="no amount of noise"):
        TeacherVotes.calibrated(5, 10, epsilon=1.0, delta=0.0)
