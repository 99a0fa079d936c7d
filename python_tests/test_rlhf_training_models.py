"""Models from seeds and directories, adapters on them, and where a bad config is named."""

from __future__ import annotations

import json

import pytest
import torch
from rlhf_training_scenarios import TEMPERATURE, config, facts, make, rollouts, train, weights_of

from hybridengine import UsageError
from hybridengine.rlhf.config.roles import Critic, Lora, Sharding
from hybridengine.rlhf.config.schema import Model
from hybridengine.rlhf.training import lora
from hybridengine.rlhf.training.export import export_hf
from hybridengine.rlhf.training.fsdp2 import Fsdp2
from hybridengine.rlhf.training.loading import build_model
from hybridengine.rlhf.training.models import strategy_of, weight_dtype
from hybridengine.rlhf.training.passes import Passes
from hybridengine.rlhf.training.sharding import decoder_layers

pytestmark = pytest.mark.python


def test_weights_of_a_seed():
    state = torch.random.get_rng_state()
    first, again, other = (
        build_model(Model(config=facts()), "policy", torch.float32, seed) for seed in (3, 3, 4)
    )
    assert state.equal(torch.random.get_rng_state())
    pairs = zip(first.parameters(), again.parameters(), strict=True)
    assert all(one.equal(two) for one, two in pairs)
    assert not first.model.embed_tokens.weight.equal(other.model.embed_tokens.weight)
    assert not first.training


@pytest.mark.parametrize("kind", ["value", "classifier"])
def test_a_head_of_one_number_on_the_policy(tmp_path, kind):
    """Zero on a policy's checkpoint; kept where the checkpoint has it."""
    policy = make()
    policy.save_pretrained(tmp_path / "policy")
    made = build_model(Model(path=str(tmp_path / "policy")), kind, torch.float64, 0)
    assert made.model.embed_tokens.weight.equal(policy.model.embed_tokens.weight)
    assert made.score.weight.shape == (1, 20) and not made.score.weight.any()
    trained = make(kind, seed=5)
    export_hf(trained, None, tmp_path / "trained")
    model = Model(path=str(tmp_path / "policy"))
    kept = build_model(model, kind, torch.float64, 0, path=tmp_path / "trained")
    assert kept.score.weight.any() and kept.score.weight.equal(trained.score.weight)


def test_directories_that_do_not_load(tmp_path):
    def attempt(path) -> str:
        with pytest.raises(UsageError) as caught:
            build_model(Model(path=str(path)), "policy", torch.float32, 0)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "is no model and no directory" in attempt(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    assert "does not load as a policy model" in attempt(tmp_path / "empty")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    assert "does not load as a policy model" in attempt(tmp_path / "broken")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text(json.dumps(facts()))
    assert "does not load as a policy model" in attempt(tmp_path / "bare")
    assert "a preset without weights" in attempt("qwen3-8b")
    smaller = make(num_hidden_layers=1)
    smaller.save_pretrained(tmp_path / "smaller")
    (tmp_path / "smaller" / "config.json").write_text(json.dumps(facts()))
    assert "lacks weights of a policy model" in attempt(tmp_path / "smaller")


def test_configs_that_make_no_model():
    with pytest.raises(UsageError, match="both unset"):
        build_model(Model(), "policy", torch.float32, 0)
    with pytest.raises(UsageError, match="no policy model of type 'quen'"):
        build_model(Model(config={"model_type": "quen"}), "policy", torch.float32, 0)


@pytest.mark.parametrize(
    ("strategy", "weights", "refused"),
    [("auto", 7e9, False), ("auto", 7e10, True), ("fsdp2", 7e10, False), ("megatron", 1, True)],
)
def test_strategies(strategy, weights, refused):
    sharding = Critic(strategy=strategy)
    if not refused:
        assert strategy_of(sharding, int(weights)) == "fsdp2"
        return
    with pytest.raises(UsageError, match=r"critic.strategy=.*Set critic.strategy=fsdp2"):
        strategy_of(sharding, int(weights))


def test_types_of_weights():
    types = {
        name: weight_dtype(Sharding(dtype=name)) for name in ("float32", "bfloat16", "float64")
    }
    assert list(types.values()) == [torch.float32, torch.float32, torch.float64]


def test_decoder_layers():
    module = make()
    assert decoder_layers(module) == list(module.model.layers)
    plain = torch.nn.Sequential(torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Tanh()]))
    assert decoder_layers(plain) == list(plain[0])
    with pytest.raises(UsageError, match="Linear has no decoder layers"):
        decoder_layers(torch.nn.Linear(1, 1))


def test_adapters_in_place_of_weights():
    module = lora.add_adapters(make(), Lora(rank=3, alpha=6.0, dropout=0.5), seed=2)
    again = lora.add_adapters(make(), Lora(rank=3, alpha=6.0, dropout=0.5), seed=2)
    assert lora.has_adapters(module) and not lora.has_adapters(make())
    trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
    assert len(trained) == 2 * 2 * 7  # A and B of seven linear layers in two blocks
    for name, each in again.named_parameters():
        assert each.equal(dict(module.named_parameters())[name]), name
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for each in trained.values():
            each.add_(torch.randn(each.shape, generator=generator, dtype=each.dtype) * 0.1)
    passes, batch = Passes(module, Sharding(dtype="float64"), TEMPERATURE), rollouts()
    found = passes.log_probs(batch)
    merged = lora.merged_tensors(module)
    layer = module.model.layers[1].mlp.up_proj
    update = layer.lora_B["default"].weight @ layer.lora_A["default"].weight * 2.0
    expected = (layer.base_layer.weight + update).detach()
    name = "model.layers.1.mlp.up_proj.weight"
    torch.testing.assert_close(merged[name], expected)
    fresh = make(seed=4)
    fresh.load_state_dict(merged)
    fresh_passes = Passes(fresh, Sharding(dtype="float64"), TEMPERATURE)
    torch.testing.assert_close(fresh_passes.log_probs(batch), found, rtol=1e-6, atol=1e-7)
    with lora.adapter_dropout(module, (0, 0, 0)):
        assert not passes.log_probs(batch).equal(found)
    assert passes.log_probs(batch).equal(found)


def test_what_adapters_drop_follows_from_the_seed_alone():
    module = lora.add_adapters(make(), Lora(rank=3, alpha=6.0, dropout=0.5), seed=2)
    with torch.no_grad():
        for name, each in module.named_parameters():
            if ".lora_B" in name:
                each.fill_(0.1)
    passes, batch = Passes(module, Sharding(dtype="float64"), TEMPERATURE), rollouts()

    def dropped(*seed):
        with lora.adapter_dropout(module, seed):
            return passes.log_probs(batch)

    first = dropped(5, 1, 0)
    torch.manual_seed(17)
    state = torch.get_rng_state()
    assert dropped(5, 1, 0).equal(first)
    assert torch.get_rng_state().equal(state)  # nobody else's numbers are touched
    others = [dropped(5, 2, 0), dropped(6, 1, 0), dropped(5, 1, 1), dropped(1, 5, 0)]
    assert not any(other.equal(first) for other in others)


def test_updates_with_dropout_repeat_however_the_process_has_drawn_before():
    """As a run that is resumed in a new process; each optimizer step drops others."""
    made = config(ppo_epochs=2)

    def updated(seed, earlier_updates=0):
        module = lora.add_adapters(make(), Lora(rank=3, alpha=6.0, dropout=0.5), seed=2)
        backend = Fsdp2(module, made.actor, temperature=TEMPERATURE, seed=seed)
        backend.optimizer.updates = earlier_updates
        train(backend, made, rollouts())
        return weights_of(module)

    first = updated(seed=3)
    torch.manual_seed(99)
    again = updated(seed=3)
    assert all(again[name].equal(weight) for name, weight in first.items())
    for other in (updated(seed=4), updated(seed=3, earlier_updates=4)):
        assert any(not other[name].equal(weight) for name, weight in first.items())


def test_names_without_a_layer_are_refused():
    with pytest.raises(UsageError, match=r"target_modules=\['q_prj'\] names no linear layer"):
        lora.add_adapters(make(), Lora(target_modules=["q_prj"]), seed=0)


def test_export_replaces_what_is_there(tmp_path):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "stale").write_text("")
    export_hf(make(), None, tmp_path / "hf")
    assert not (tmp_path / "hf" / "stale").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]


def test_importing_needs_no_other_library(run_core):
    names = ["lora", "memory", "models", "optimizer", "passes", "ppo", "state", "supervised"]
    imports = "\n".join(f"import hybridengine.rlhf.training.{name}" for name in names)
    check = "import sys\nprint([m for m in ('ray', 'transformers', 'peft') if m in sys.modules])"
    result = run_core(f"{imports}\n{check}")
    assert result.stdout.strip() == "[]", result.stderr
