"""Generated samples, and the choice between them and files."""

import json
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from hybridengine import UsageError
from hybridengine.rlhf.config.schema import Config, Data, Gym
from hybridengine.rlhf.data import make_gym, open_data

pytestmark = pytest.mark.python

OPTIONS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def gym(**changes: Any) -> Gym:
    return Gym(**{"name": "chain_sum", "size": 5, "options": dict(OPTIONS), **changes})


def test_samples_are_the_entries_of_the_generator() -> None:
    expected = reasoning_gym.create_dataset("chain_sum", size=5, seed=11, **OPTIONS)
    samples = make_gym(gym(), seed=11)
    assert len(samples) == 5 and len(list(samples)) == 5
    for index, sample in enumerate(samples):
        entry = expected[index]
        assert (sample.index, sample.prompt) == (index, entry["question"])
        assert sample.ground_truth == sample.response == entry["answer"]
        assert (sample.data_source, sample.extra) == ("chain_sum", entry)
    assert samples[-1] == samples[4] and samples[1:3] == [samples[1], samples[2]]
    for outside in (5, -6):
        with pytest.raises(IndexError):
            samples[outside]


def test_the_prompt_is_the_question_a_key_or_a_format() -> None:
    expression = make_gym(gym(prompt_key="expression"), 1)[0].prompt
    question = make_gym(gym(), 1)[0].prompt
    assert isinstance(expression, str) and isinstance(question, str)
    assert expression in question and expression != question
    assert make_gym(gym(prompt_key="{expression} = "), 1)[0].prompt == f"{expression} = "
    both = make_gym(gym(prompt_key="{question}|{num_terms}"), 1)[0].prompt
    assert both == f"{question}|2"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"name": "chain_sums"}, "no generator 'chain_sums', .* the nearest, 'chain_sum'"),
        ({"name": None}, "no generator None"),
        ({"options": {"min_term": 2}}, "no option 'min_term': .* the nearest, 'min_terms'"),
        ({"options": {"size": 2}}, "'size' is not set here. Set data.gym.size"),
        ({"options": {"min_terms": 0}}, "chain_sum refuses {'min_terms': 0}: "),
        ({"options": {"min_terms": "two"}}, "chain_sum refuses {'min_terms': 'two'}: "),
        ({"prompt_key": "expresion"}, "'expresion' is neither .* the nearest, 'expression'"),
        ({"prompt_key": "{expresion}"}, "'{expresion}' is neither a key nor a format"),
        ({"prompt_key": "{"}, "'{' is neither a key nor a format"),
        ({"prompt_key": "{}"}, "'{}' is neither a key nor a format"),
    ],
)
def test_a_generator_that_cannot_be_made(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        make_gym(gym(**changes), 0)


def test_evaluation_and_other_seeds_have_other_samples() -> None:
    wide = gym(size=300, options={"min_digits": 6, "max_digits": 6})
    config = Config(seed=0, data=Data(gym=wide, eval_size=200))
    train = {sample.prompt for sample in open_data(config, "train")}
    other = {sample.prompt for sample in open_data(Config(seed=1, data=config.data), "train")}
    evaluation = [sample.prompt for sample in open_data(config, "eval")]
    assert len(train) == len(other) == 300 and len(evaluation) == 200
    assert not train & other and not train & set(evaluation)
    assert train == {sample.prompt for sample in open_data(config, "train")}


def test_files_are_opened_by_split(tmp_path: Path) -> None:
    for name in ("train", "eval"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": name}))
    data = Data(train_files=[str(tmp_path / "train.jsonl")])
    assert [sample.prompt for sample in open_data(Config(data=data), "train")] == ["train"]
    assert open_data(Config(data=data), "eval") == []
    data.eval_files = [str(tmp_path / "eval.jsonl")]
    assert [sample.prompt for sample in open_data(Config(data=data), "eval")] == ["eval"]
    generated = Config(data=Data(gym=gym(), eval_files=data.eval_files))
    assert [sample.prompt for sample in open_data(generated, "eval")] == ["eval"]


def test_no_data_and_two_kinds_of_it_are_refused() -> None:
    with pytest.raises(UsageError, match=r"no data to train on\. Set data\.train_files or"):
        open_data(Config(), "train")
    assert open_data(Config(), "eval") == []
    with pytest.raises(UsageError, match="are both set"):
        open_data(Config(data=Data(train_files=["a.jsonl"], gym=gym())), "train")
