"""The training loop: its schedule, what a step does, and that a killed training ends like an uninterrupted one."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from processes import context, wait_for_a_checkpoint
from torch import nn

from apood.backbones.training_loop import Batch, Point, Schedule, train
from apood.fitting.optimise import Checkpoint
from apood.support.errors import ArtefactError, InputError

SCHEDULE = Schedule(steps=50, learning_rate=0.05, warm_up=0.2, seed=3, validate_every=15)


def new_model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(0.3), nn.Linear(8, 1))


def make_batch(step):
    """Sums of four numbers, drawn by the number of the step."""
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
    return Batch({"x": x, "y": x.sum(1, keepdim=True)}, tokens=24)


def trained(folder, schedule=SCHEDULE, *, every_seconds=1e9, batches=make_batch, run="run", validated=True):
    """Return the model and the history of a training that keeps its state in `folder`."""
    model = new_model()

    def compute_loss(tensors):
        return nn.functional.mse_loss(model(tensors["x"]), tensors["y"])

    def validate():
        model.eval()
        with torch.no_grad():
            return float(compute_loss(make_batch(10_000).tensors))

    checkpoint = Checkpoint(folder / "checkpoint", every_seconds)
    history = train(
        model,
        batches,
        compute_loss,
        schedule,
        run=run,
        checkpoint=checkpoint,
        label="",
        validate=validate if validated else None,
    )
    return model, history


def same(model, other):
    return all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_the_rate_rises_to_its_peak_and_falls_to_zero():
    schedule = Schedule(steps=100, learning_rate=2.0, warm_up=0.2)
    assert schedule.rate(0) == 0
    assert schedule.rate(0.1) == pytest.approx(1.0)
    assert schedule.rate(0.2) == 2.0
    assert schedule.rate(0.6) == pytest.approx(1.0)  # the middle of the cosine
    assert schedule.rate(0.4) == pytest.approx(1 + math.cos(math.pi / 4))
    assert schedule.rate(1) == pytest.approx(0, abs=1e-12)
    assert Schedule(steps=100, learning_rate=2.0, warm_up=0).rate(0) == 2.0


@given(st.integers(1, 10**6), st.floats(0, 0.9), st.floats(0, 1))
def test_the_rate_is_never_above_its_peak(steps, warm_up, progress):
    schedule = Schedule(steps=steps, learning_rate=0.5, warm_up=warm_up)
    assert 0 <= schedule.rate(progress) <= 0.5
    assert 0 < schedule.progress(0, 0.0) <= schedule.progress(steps - 1, 0.0) < 1


def test_a_time_limit_shortens_the_schedule():
    schedule = Schedule(steps=1000, learning_rate=1.0, minutes=2)
    assert schedule.progress(9, seconds=60) == 0.5  # time is further than the steps
    assert schedule.progress(899, seconds=60) == pytest.approx(0.8995)  # the steps are further than time
    assert schedule.progress(9, seconds=121) == 1


def test_a_training_learns_and_says_what_it_did(tmp_path):
    model, history = trained(tmp_path, Schedule(steps=150, learning_rate=0.05, warm_up=0.1, validate_every=60))
    assert (history.steps, history.tokens) == (150, 150 * 24)
    assert [point.step for point in history.losses] == [20, 40, 60, 80, 100, 120, 140, 150]
    assert [point.step for point in history.validation] == [60, 120]
    assert history.losses[-1].loss < 0.5 * history.losses[0].loss
    assert history.validation[-1].loss < history.losses[0].loss
    assert history.seconds > 0 and not model.training


def test_a_point_is_the_mean_loss_since_the_one_before(tmp_path):
    model = new_model()
    seen = []

    def compute_loss(tensors):
        loss = nn.functional.mse_loss(model(tensors["x"]), tensors["y"])
        seen.append(loss.detach())
        return loss

    history = train(
        model, make_batch, compute_loss, Schedule(steps=25, learning_rate=0.01),
        run="", checkpoint=Checkpoint(tmp_path / "c"), label="",
    )  # fmt: skip
    means = [float(torch.stack(part).mean()) for part in (seen[:20], seen[20:])]
    assert history.losses == [Point(20, pytest.approx(means[0])), Point(25, pytest.approx(means[1]))]


def test_gradients_are_clipped_and_only_matrices_decay(tmp_path):
    """The moments after one step show the gradient that the optimiser got."""
    model = nn.Linear(2, 2)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    train(
        model,
        lambda _: Batch({"x": torch.ones(1, 2)}, 1),
        lambda tensors: 1000 * model(tensors["x"]).sum() + 0 * tensors["x"].sum(),
        Schedule(steps=1, learning_rate=1e-9, warm_up=0, weight_decay=1e8, clip=0.5),
        run="", checkpoint=Checkpoint(tmp_path / "c"), label="",
    )  # fmt: skip
    _, state = Checkpoint(tmp_path / "c").load("")
    moments = [state[f"optimizer.{index}.exp_avg"] for index in range(len(before))]
    norm = math.sqrt(sum(float((moment / 0.1).square().sum()) for moment in moments))
    assert norm == pytest.approx(0.5, rel=1e-4)
    assert torch.allclose(model.bias, before["bias"], atol=1e-6)
    shrunk = 1 - 0.1 * Schedule(steps=1, learning_rate=1.0, warm_up=0).rate(0.5)
    assert torch.allclose(model.weight, before["weight"] * shrunk, atol=1e-6)


def test_frozen_and_unused_parameters_stay(tmp_path):
    model = new_model()
    model[0].weight.requires_grad_(False)
    model.unused = nn.Parameter(torch.ones(3))
    before = model[0].weight.clone()
    schedule = Schedule(steps=25, learning_rate=0.01)

    def compute_loss(tensors):
        return model[3](model[2](model[1](model[0](tensors["x"])))).square().mean()

    for _ in range(2):  # the second time from the checkpoint
        train(model, make_batch, compute_loss, schedule, run="", checkpoint=Checkpoint(tmp_path / "c", 0), label="")
        assert torch.equal(model[0].weight, before) and torch.equal(model.unused, torch.ones(3))


def test_a_training_follows_from_its_seed_and_leaves_the_global_generator_alone(tmp_path):
    state = torch.random.get_rng_state()
    first, _ = trained(tmp_path / "1")
    torch.rand(5)
    second, _ = trained(tmp_path / "2")
    other, _ = trained(tmp_path / "3", Schedule(steps=50, learning_rate=0.05, warm_up=0.2, seed=4))
    assert same(first, second) and not same(first, other)
    torch.random.set_rng_state(state)
    trained(tmp_path / "4")
    assert torch.equal(torch.random.get_rng_state(), state)


def test_validation_and_checkpoints_change_nothing(tmp_path):
    plain, _ = trained(tmp_path / "1", validated=False)
    validated, _ = trained(tmp_path / "2", every_seconds=0)
    assert same(plain, validated)


def test_batches_are_made_in_order_and_not_too_many(tmp_path):
    asked = []

    def noted(step):
        asked.append(step)
        return make_batch(step)

    trained(tmp_path, batches=noted)
    assert asked == list(range(50))


def test_an_error_in_making_a_batch_ends_the_training(tmp_path):
    def failing(step):
        if step == 7:
            raise InputError("no batch.")
        return make_batch(step)

    with pytest.raises(InputError, match="no batch"):
        trained(tmp_path, batches=failing)


def train_slowly(folder):
    torch.set_num_threads(1)
    trained(folder, every_seconds=0)
    (folder / "finished").touch()


def test_killed_trainings_end_like_an_uninterrupted_one(tmp_path):
    moments = random.Random(0)
    kills = []
    seen = None
    while not (tmp_path / "finished").exists():
        process = context.Process(target=train_slowly, args=(tmp_path,))
        process.start()
        if len(kills) < 5:  # then it may finish
            seen = wait_for_a_checkpoint(process, tmp_path / "checkpoint", seen)
            process.join(moments.uniform(0, 0.02))
            process.kill()
            kills.append(seen)
        process.join()
        assert process.exitcode in (0, -9)
    assert len(set(kills)) >= 3, "it was killed after different steps"
    resumed, history = trained(tmp_path)
    expected, whole = trained(tmp_path / "other")
    assert same(resumed, expected)
    assert (history.losses, history.validation, history.tokens) == (whole.losses, whole.validation, whole.tokens)


def test_an_interrupted_training_goes_on_exactly(tmp_path):
    def interrupted(number):
        if number == 33:
            raise KeyboardInterrupt
        return make_batch(number)

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, every_seconds=0, batches=interrupted)
    resumed, history = trained(tmp_path)
    expected, whole = trained(tmp_path / "other")
    assert same(resumed, expected) and history.losses == whole.losses and history.validation == whole.validation


def test_a_finished_training_is_not_repeated(tmp_path):
    expected, whole = trained(tmp_path)

    def never(step):
        raise AssertionError(step)

    again, history = trained(tmp_path, batches=never)
    assert same(expected, again) and history == whole


def test_a_time_limit_holds_over_resumed_parts(tmp_path):
    schedule = Schedule(steps=10**9, learning_rate=0.01, minutes=0.3 / 60)
    _, history = trained(tmp_path, schedule)
    assert 1 <= history.steps < schedule.steps and history.seconds >= 0.3
    _, again = trained(tmp_path, schedule)
    assert again.steps == history.steps


def test_the_state_of_another_training_is_refused(tmp_path):
    trained(tmp_path)
    with pytest.raises(ArtefactError, match="other settings"):
        trained(tmp_path, run="another")


def test_a_diverged_training_says_so(tmp_path):
    def infinite(step):
        batch = make_batch(step)
        return Batch({"x": batch.tensors["x"] * math.inf, "y": batch.tensors["y"]}, 1)

    with pytest.raises(InputError, match="no longer finite at step 20"):
        trained(tmp_path, batches=infinite)


def test_impossible_schedules_are_refused():
    for name, value in {
        "steps": 0, "learning_rate": math.nan, "warm_up": 1.0, "minutes": 0, "clip": -1.0, "validate_every": 0
    }.items():  # fmt: skip
        with pytest.raises(InputError, match=str(value)):
            Schedule(**({"steps": 10, "learning_rate": 0.1} | {name: value}))
