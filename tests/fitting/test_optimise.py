"""The optimisation loop: schedules, Adam, kills and divergence."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apood.fitting.optimise import Checkpoint, cosine, minimise, warm_up

STEPS = 24
TARGET = torch.tensor([1.0, -2.0, 0.5])


class KilledError(Exception):
    pass


class Task:
    """A loss that follows from the number of the step, and can become NaN or be killed at a given step."""

    def __init__(self, broken_from=None, killed_at=None):
        self.parameter = torch.zeros(3, requires_grad=True)
        self.broken_from, self.killed_at = broken_from, killed_at
        self.steps, self.parameters = [], []

    def __call__(self, step):
        if step == self.killed_at:
            raise KilledError
        self.steps.append(step)
        self.parameters.append(self.parameter.detach().clone())
        noise = torch.randn(3, generator=torch.Generator().manual_seed(step))
        loss = (self.parameter - TARGET - 0.1 * noise).square().sum()
        if self.broken_from is not None and step >= self.broken_from:
            loss = loss * math.nan
        return loss, loss / 3

    def run(self, checkpoint=None, steps=STEPS, name="a run"):
        return minimise(
            [self.parameter], self, steps=steps, learning_rate=0.2, run=name, checkpoint=checkpoint, label="test"
        )


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path / "state" / "checkpoint", every_seconds=0)


def test_the_cosine_falls_from_one_to_zero():
    values = [cosine(step, 100) for step in range(101)]
    assert values[0] == 1 and values[50] == pytest.approx(0.5) and values[100] == pytest.approx(0, abs=1e-15)
    assert values[25] == pytest.approx((1 + math.sqrt(0.5)) / 2)
    assert values == sorted(values, reverse=True)


def test_the_warm_up_rises_from_zero_to_one():
    assert [warm_up(step, 4) for step in range(7)] == [0, 0.25, 0.5, 0.75, 1, 1, 1]
    assert [warm_up(step, 0) for step in (0, 1, 9)] == [1, 1, 1]
    assert warm_up(1, 2.5) == pytest.approx(0.4)


def test_the_loss_is_minimised_and_reported():
    task = Task()
    outcome = task.run(steps=300)
    torch.testing.assert_close(task.parameter.detach(), TARGET, rtol=0, atol=0.1)
    assert outcome.diverged_at is None
    assert outcome.loss < 0.5 and outcome.distance == pytest.approx(outcome.loss / 3)
    assert task.steps == list(range(300))


def test_the_curve_has_the_steps_that_were_looked_at(checkpoint):
    whole = Task().run(steps=25).curve
    assert [point.step for point in whole.points] == [0, 10, 20, 24]
    assert whole.points[-1].distance == pytest.approx(whole.points[-1].loss / 3)
    with pytest.raises(KilledError):
        Task(killed_at=15).run(checkpoint, steps=25)
    assert Task().run(checkpoint, steps=25).curve == whole, "an interruption leaves no trace"
    assert [point.step for point in Task(broken_from=20).run(steps=25).curve.points] == [0, 10]
    assert Task(broken_from=0).run().curve.points == ()


def test_it_is_adam_with_a_cosine_schedule():
    task, reference = Task(), Task()
    task.run()
    adam = torch.optim.Adam([reference.parameter], lr=0.2, fused=True)
    for step in range(STEPS):
        adam.param_groups[0]["lr"] = 0.2 * cosine(step, STEPS)
        adam.zero_grad()
        reference(step)[0].backward()
        adam.step()
    assert torch.equal(task.parameter, reference.parameter)


class TwoParameters:
    """A loss of two parameters of different shapes."""

    def __init__(self, killed_at=None):
        self.parameters = [torch.full((2, 3), 0.5, requires_grad=True), torch.ones(2, requires_grad=True)]
        self.killed_at = killed_at

    def __call__(self, step):
        if step == self.killed_at:
            raise KilledError
        noise = torch.randn(3, generator=torch.Generator().manual_seed(step))
        matrix, vector = self.parameters
        loss = (matrix.T @ vector - TARGET - 0.1 * noise).square().sum()
        return loss, loss / 3

    def run(self, checkpoint=None, objective=None, weight_decay=0.1):
        arguments = {"steps": STEPS, "learning_rate": 0.2, "weight_decay": weight_decay}
        return minimise(
            self.parameters, objective or self, **arguments, run="a run", checkpoint=checkpoint, label="test"
        )


def test_several_parameters_are_those_of_adam_with_weight_decay():
    task, reference = TwoParameters(), TwoParameters()
    task.run()
    adam = torch.optim.Adam(reference.parameters, lr=0.2)
    for step in range(STEPS):
        adam.param_groups[0]["lr"] = 0.2 * cosine(step, STEPS)
        adam.zero_grad()
        penalty = sum(parameter.square().sum() for parameter in reference.parameters)
        (reference(step)[0] + 0.1 / 2 * penalty).backward()
        adam.step()
    for found, expected in zip(task.parameters, reference.parameters, strict=True):
        torch.testing.assert_close(found, expected)
    without = TwoParameters()
    without.run(weight_decay=0.0)
    assert not torch.allclose(without.parameters[0], task.parameters[0])


def test_several_parameters_continue_after_a_kill(checkpoint):
    expected, last = TwoParameters(), TwoParameters()
    outcome = expected.run()
    with pytest.raises(KilledError):
        TwoParameters(killed_at=11).run(checkpoint)
    assert last.run(checkpoint) == outcome
    assert all(map(torch.equal, last.parameters, expected.parameters))


@pytest.mark.parametrize("number", [0, 1])
def test_a_last_step_that_breaks_one_parameter_is_undone(number):
    task = TwoParameters()
    before = []

    def objective(step):
        loss, distance = task(step)
        if step == STEPS - 1:
            before.extend(parameter.detach().clone() for parameter in task.parameters)
            broken = task.parameters[number]
            # A finite loss with an infinite gradient.
            loss = loss + 1e30 * (1e30 * (broken - broken.detach())).sum()
        return loss, distance

    outcome = task.run(objective=objective)
    assert outcome.diverged_at == STEPS and math.isfinite(outcome.loss)
    assert all(map(torch.equal, task.parameters, before))


@settings(max_examples=15)
@given(st.lists(st.integers(0, STEPS - 1), max_size=4), st.sampled_from([None, 0, 3, 13, STEPS - 1]))
def test_kills_do_not_change_the_result(tmp_path_factory, kills, broken_from):
    uninterrupted = Task(broken_from)
    expected = uninterrupted.run()
    checkpoint = Checkpoint(tmp_path_factory.mktemp("run") / "checkpoint", every_seconds=0)
    for killed_at in sorted(kills):
        victim = Task(broken_from, killed_at)
        try:
            victim.run(checkpoint)
        except KilledError:
            continue
        break  # it had diverged before
    last = Task(broken_from)
    outcome = last.run(checkpoint)
    assert torch.equal(last.parameter, uninterrupted.parameter)
    assert repr(outcome) == repr(expected)  # NaN is not equal to itself
    if kills and broken_from is None:
        assert last.steps == list(range(max(kills), STEPS))


def test_a_complete_fit_may_be_run_again(checkpoint):
    expected, again = Task(), Task()
    assert again.run(checkpoint) == expected.run(checkpoint)
    assert torch.equal(again.parameter, expected.parameter)


def test_checkpoints_do_not_change_the_result(checkpoint, tmp_path):
    with_one, without, seldom = Task(), Task(), Task()
    with_one.run(checkpoint)
    without.run()
    seldom.run(Checkpoint(tmp_path / "never", every_seconds=1e9))
    assert torch.equal(with_one.parameter, without.parameter) and torch.equal(seldom.parameter, without.parameter)
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(("broken_from", "noticed_at"), [(0, 0), (3, 10), (10, 10), (15, 20), (STEPS - 1, STEPS - 1)])
def test_a_loss_that_is_not_finite_restores_the_last_good_parameters(broken_from, noticed_at):
    """The loss is looked at every ten steps and at the last one."""
    task = Task(broken_from)
    outcome = task.run()
    assert outcome.diverged_at == noticed_at and math.isnan(outcome.loss)
    assert torch.isfinite(task.parameter).all()
    last_look = max((step for step in range(0, broken_from, 10)), default=0)
    assert torch.equal(task.parameter.detach(), task.parameters[last_look])
