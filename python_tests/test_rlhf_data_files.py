"""Samples and pairs out of real files, and what is said of files that are not as they should be."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from hybridengine import UsageError
from hybridengine.rlhf.config.schema import Data
from hybridengine.rlhf.data import Pair, Sample, read_files, read_pairs

pytestmark = pytest.mark.python

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]

ROWS: list[dict[str, Any]] = [
    {"prompt": "1 + 1 =", "ground_truth": "2", "data_source": "sums", "extra": {"level": 1}},
    {"prompt": "2 + 2 =", "ground_truth": "4", "data_source": "sums", "extra": {"level": 2}},
]
SAMPLES = [
    Sample(0, "1 + 1 =", None, "2", "sums", {"level": 1}),
    Sample(1, "2 + 2 =", None, "4", "sums", {"level": 2}),
]


def json_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def saved(path: Path, rows: list[dict[str, Any]]) -> Path:
    from datasets import Dataset

    Dataset.from_list(rows).save_to_disk(str(path))
    return path


def refused(paths: list[Path], data: Data | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        read_files(paths, data if data is not None else Data())
    return str(caught.value)


@pytest.mark.parametrize("write", [json_lines, parquet, saved])
def test_every_kind_of_file_gives_the_same_samples(tmp_path: Path, write: Any) -> None:
    name = {json_lines: "rows.jsonl", parquet: "rows.parquet", saved: "rows"}[write]
    path = write(tmp_path / name, ROWS)
    assert read_files([path], Data()) == SAMPLES


def test_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    paths = [parquet(tmp_path / "b.parquet", ROWS[:1]), json_lines(tmp_path / "a.json", ROWS[1:])]
    assert read_files(paths, Data()) == SAMPLES


def test_a_directory_of_a_hf_dataset(tmp_path: Path) -> None:
    for part in range(2):
        name = f"train-{part:05}-of-00002.parquet"
        parquet(tmp_path / "set" / "data" / name, ROWS[part : part + 1])
    assert read_files([tmp_path / "set"], Data()) == SAMPLES
    parquet(tmp_path / "set" / "data" / "test-00000-of-00001.parquet", ROWS)
    assert "holds several splits or datasets: " in refused([tmp_path / "set"])
    assert read_files([tmp_path / "set" / "data" / "train-*.parquet"], Data()) == SAMPLES


def test_a_directory_of_json_lines_and_gzip(tmp_path: Path) -> None:
    json_lines(tmp_path / "a.jsonl", ROWS[:1])
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write(json.dumps(ROWS[1]) + "\n\n")
    assert read_files([tmp_path], Data()) == SAMPLES
    (tmp_path / "b.jsonl.gz").write_bytes(b"no gzip")
    assert "b.jsonl.gz cannot be read: " in refused([tmp_path])


def test_several_datasets_in_one_directory_are_not_mixed(tmp_path: Path) -> None:
    for folder in ("main", "socratic"):
        parquet(tmp_path / folder / "train-00000-of-00001.parquet", ROWS)
    assert "holds several splits or datasets" in refused([tmp_path])
    other = tmp_path / "other"
    for name in ("train", "test"):
        json_lines(other / f"{name}.jsonl", ROWS)
    assert "holds several splits or datasets" in refused([other])


def test_a_saved_dataset_with_splits_asks_for_one(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_list(ROWS)
    DatasetDict({"train": rows, "test": rows}).save_to_disk(str(tmp_path / "set"))
    assert f"Name one of {tmp_path}/set/test, {tmp_path}/set/train." in refused([tmp_path / "set"])
    assert read_files([tmp_path / "set" / "train"], Data()) == SAMPLES


@pytest.mark.parametrize("write", [json_lines, parquet])
def test_prompts_of_messages_lose_the_keys_that_other_rows_have(tmp_path: Path, write: Any) -> None:
    named = [{"role": "user", "content": "Hi", "name": "Ann"}]
    path = tmp_path / ("a.jsonl" if write is json_lines else "a.parquet")
    write(path, [{"prompt": MESSAGES}, {"prompt": named}])
    assert [sample.prompt for sample in read_files([path], Data())] == [MESSAGES, named]


def test_columns_by_name_and_those_that_may_be_missing(tmp_path: Path) -> None:
    path = json_lines(tmp_path / "gsm.v1.jsonl", [{"question": "q", "answer": "#### 4"}])
    data = Data(prompt_key="question", ground_truth_key="answer")
    assert read_files([path], data) == [Sample(0, "q", None, "#### 4", "gsm", None)]
    data = Data(prompt_key="question", response_key="answer", mode="offline")
    assert read_files([path], data) == [Sample(0, "q", "#### 4", None, "gsm", None)]


def test_the_nested_columns_of_verl(tmp_path: Path) -> None:
    row = {
        "prompt": MESSAGES,
        "data_source": "openai/gsm8k",
        "reward_model": {"style": "rule", "ground_truth": "72"},
        "extra_info": {"index": 3},
    }
    path = parquet(tmp_path / "a.parquet", [row])
    expected = Sample(0, MESSAGES, None, "72", "openai/gsm8k", {"index": 3})
    assert read_files([path], Data()) == [expected]


def test_a_missing_column_names_those_that_exist_and_the_nearest(tmp_path: Path) -> None:
    path = json_lines(tmp_path / "a.jsonl", [{"promt": "x", "answer": "y"}])
    assert refused([path]) == (
        f"{path} has no column 'prompt': it has promt, answer. "
        f"Set data.prompt_key to the nearest, 'promt', or another of these."
    )
    named = Data(prompt_key="promt", ground_truth_key="anser")
    assert "Set data.ground_truth_key to the nearest, 'answer'" in refused([path], named)
    offline = Data(prompt_key="promt", mode="offline")
    assert "has no column 'response'" in refused([path], offline)


def test_each_file_must_have_the_columns(tmp_path: Path) -> None:
    first = json_lines(tmp_path / "a.jsonl", ROWS)
    second = json_lines(tmp_path / "b.jsonl", [{"text": "x"}])
    assert f"{second} has no column 'prompt': it has text." in refused([first, second])


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"prompt": 3}, "column 'prompt' holds a value of type int, no prompt. Give text, or"),
        ({"prompt": None}, "column 'prompt' holds nothing, no prompt."),
        ({}, "column 'prompt' holds nothing, no prompt."),
        ({"prompt": []}, "column 'prompt' holds an empty list, no prompt."),
        ({"prompt": ["a"]}, "column 'prompt' holds a value of type str as message 0."),
        ({"prompt": [{"role": "user"}]}, "holds nothing as 'content' of message 0."),
        ({"prompt": "x", "response": 3}, "column 'response' holds a value of type int, not text."),
        ({"prompt": "x", "data_source": 3}, "column 'data_source' holds a value of type int"),
    ],
)
def test_a_wrong_value_names_file_row_and_column(
    tmp_path: Path, row: dict[str, Any], error: str
) -> None:
    path = json_lines(tmp_path / "a.jsonl", [*ROWS, row])
    message = refused([path])
    assert message.startswith(f"{path}:3: ") and error in message
    if row and row.get("prompt") == 3:
        path = parquet(tmp_path / "a.parquet", [row])
        assert refused([path]).startswith(f"{path}, row 0: column 'prompt' holds")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"prompt": "x"', r":2: not JSON: Expecting ',' delimiter at column 15. Write one obj"),
        (b"[1, 2]", ":2: a JSON list, not an object."),
        (b'{"prompt": "\xff"}', ":2: not UTF-8 at byte 12."),
    ],
)
def test_malformed_json_names_the_line(tmp_path: Path, line: bytes, error: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "x"}\n' + line)
    assert f"{path}{error}" in refused([path])


def test_files_that_are_no_data(tmp_path: Path) -> None:
    nowhere = Path("/nowhere/a.parquet")
    assert refused([nowhere]) == f"there is no file or directory '{nowhere}'. Mend the path."
    assert f"no file matches '{tmp_path}/*.parquet'" in refused([tmp_path / "*.parquet"])
    assert "is no dataset: it holds neither" in refused([tmp_path])
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but no more")
    assert "a.parquet cannot be read as parquet: " in refused([tmp_path / "a.parquet"])
    (tmp_path / "a.csv").write_text("prompt\nx\n")
    assert "has a name that does not say what it is" in refused([tmp_path / "a.csv"])
    (tmp_path / "a.jsonl").write_text("\n")
    assert "a.jsonl has no rows" in refused([tmp_path / "a.jsonl"])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "state.json").write_text("{}")
    assert "cannot be read as a saved dataset" in refused([tmp_path / "broken"])
    assert "no files are named" in refused([])


def pair(tmp_path: Path, row: dict[str, Any]) -> Pair:
    path = json_lines(tmp_path / "pairs.jsonl", [row])
    (found,) = read_pairs([path], Data())
    return found


def test_pairs_as_whole_dialogs(tmp_path: Path) -> None:
    shared = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: What is 2 + 2?\n\nAssistant:"
    row = {"chosen": shared + " It is 4.", "rejected": shared + " It is 5."}
    assert pair(tmp_path, row) == Pair(0, shared, " It is 4.", " It is 5.")


def test_an_answer_that_goes_on_where_the_other_ends(tmp_path: Path) -> None:
    shared = "\n\nHuman: Hi\n\nAssistant:"
    longer = " Hello.\n\nHuman: Bye\n\nAssistant: Bye."
    row = {"chosen": shared + " Hello.", "rejected": shared + longer}
    assert pair(tmp_path, row) == Pair(0, shared, " Hello.", longer)


def test_pairs_of_messages(tmp_path: Path) -> None:
    def answer(text: str) -> dict[str, str]:
        return {"role": "assistant", "content": text}

    row: dict[str, Any] = {"chosen": [*MESSAGES, answer("4")], "rejected": [*MESSAGES, answer("5")]}
    assert pair(tmp_path, row) == Pair(0, MESSAGES, "4", "5")
    assert pair(tmp_path, {**row, "prompt": "2 + 2?"}) == Pair(0, MESSAGES, "4", "5")
    alone = {"prompt": "2 + 2?", "chosen": [answer("4")], "rejected": [answer("5")]}
    assert pair(tmp_path, alone) == Pair(0, "2 + 2?", "4", "5")


def test_pairs_with_a_prompt_of_their_own(tmp_path: Path) -> None:
    row: dict[str, Any] = {"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"}
    assert pair(tmp_path, row) == Pair(0, "2 + 2 =", " 4", " 5")
    whole = {**row, "chosen": "2 + 2 = 4", "rejected": "2 + 2 = 5"}
    assert pair(tmp_path, whole) == Pair(0, "2 + 2 =", " 4", " 5")
    assert pair(tmp_path, {**row, "prompt": MESSAGES}) == Pair(0, MESSAGES, " 4", " 5")


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"chosen": "4", "rejected": "5"}, "'chosen' shares no prompt with 'rejected'"),
        ({"chosen": "4", "rejected": 5}, "'rejected' holds a value of type int, not text"),
        ({"chosen": MESSAGES, "rejected": MESSAGES}, "'chosen' ends with a message of 'user'"),
        ({"chosen": [{"role": "assistant", "content": "4"}], "rejected": "5"},
         "'rejected' holds a value of type str. Give messages"),
        ({"chosen": [{"role": "assistant", "content": "4"}],
          "rejected": [*MESSAGES, {"role": "assistant", "content": "4"}]},
         "'chosen' and 'rejected' differ before their last messages"),
        ({"chosen": "4"}, "has no column 'rejected'"),
    ],
)  # fmt: skip
def test_bad_pairs(tmp_path: Path, row: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        pair(tmp_path, row)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (r'{"prompt": "a\ud83d b"}', r"column 'prompt' holds half a character, '\ud83d', at 1 of "),
        (r'{"prompt": "a", "ground_truth": "\ud83d"}', "column 'ground_truth' holds half"),
        (r'{"prompt": "a", "ground_truth": ["b", "\udc00"]}', "column 'ground_truth' holds half"),
        (r'{"prompt": [{"role": "user", "content": "a\udc00"}]}', "column 'prompt' holds half"),
        (r'{"prompt": "a", "extra": {"\udc00": 1}}', "column 'extra' holds half"),
        (r'{"prompt": "a", "reward_model": {"ground_truth": "\udc00"}}', "'reward_model' holds"),
        (
            '{"prompt": "a", "ground_truth": ' + "1" * 5000 + "}",
            "cannot be read: Exceeds the limit",
        ),
        ('{"prompt": ' + "[" * 100_000, "cannot be read: "),
    ],
)
def test_text_that_is_none_names_file_and_row(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n' + line + "\n")
    message = refused([tmp_path / "a.jsonl"])
    assert message.startswith(f"{tmp_path}/a.jsonl:2: ") and words in message
    assert message.isascii() and "\n" not in message


def test_pairs_with_half_a_character_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(r'{"prompt": "a", "chosen": "b", "rejected": "\udc00"}')
    with pytest.raises(UsageError, match=r"a\.jsonl:1: column 'rejected' holds half a character"):
        read_pairs([tmp_path / "a.jsonl"], Data())


def test_columns_that_nobody_reads_may_hold_anything(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(r'{"prompt": "a", "note": "\udc00"}')
    assert [each.prompt for each in read_files([tmp_path / "a.jsonl"], Data())] == ["a"]


def test_bytes_of_parquet_that_are_no_text_name_the_row(tmp_path: Path) -> None:
    values = pyarrow.array([b"a", b"b", b"\xff"], pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"prompt": values}), tmp_path / "a.parquet")
    assert "a.parquet, row 2: not UTF-8: " in refused([tmp_path / "a.parquet"])


@pytest.mark.parametrize(
    ("text", "prompts", "ground_truths"),
    [
        ('\ufeff{"prompt": "a"}\n{"prompt": "b"}\n', ["a", "b"], [None, None]),
        ('{"prompt": "a", "ground_truth": "2"}\r\n' * 2, ["a", "a"], ["2", "2"]),
        (r'{"prompt": "a\u0000b"}', ["a\0b"], [None]),
        ('{"prompt": "a\u2028b"}', ["a\u2028b"], [None]),
        (r'{"prompt": "\ud83d\ude00"}', ["\U0001f600"], [None]),
        ('{"prompt": "a", "ground_truth": 2}', ["a"], [2]),
        ('{"prompt": "a", "ground_truth": ["2", "two"]}', ["a"], [["2", "two"]]),
    ],
    ids=["bom", "crlf", "nul", "separator", "pair", "number", "list"],
)
def test_odd_text_that_is_text(
    tmp_path: Path, text: str, prompts: list[str], ground_truths: list[Any]
) -> None:
    (tmp_path / "a.jsonl").write_bytes(text.encode())
    found = read_files([tmp_path / "a.jsonl"], Data())
    assert [each.prompt for each in found] == prompts
    assert [each.ground_truth for each in found] == ground_truths


def test_a_function_of_ones_own_yields_rows(tmp_path: Path) -> None:
    """A dataset plug-in: what a file would hold, by code."""
    path = tmp_path / "mine.py"
    path.write_text(
        "def rows():\n    for n in range(2):\n"
        "        yield {'prompt': f'{n} + 1 =', 'ground_truth': n + 1}\n"
        "def bad():\n    yield 3\n"
        "def broken():\n    yield {'prompt': 'a'}\n    raise KeyError('b')\n"
        "def none():\n    return []\n"
    )
    found = read_files([f"{path}:rows"], Data())
    assert [(each.prompt, each.ground_truth) for each in found] == [("0 + 1 =", 1), ("1 + 1 =", 2)]
    assert [each.where for each in found] == [f"{path}, row 0", f"{path}, row 1"]
    for name, error in (
        ("bad", "row 0 is an int. Yield a dict a row"),
        ("broken", "KeyError: 'b'. Mend the file."),
        ("none", "has no rows. Give one that has"),
        ("nothing", "has no 'nothing': it has rows, bad, broken, none. "),
    ):
        with pytest.raises(UsageError, match=re.escape(error)):
            read_files([f"{path}:{name}"], Data())
