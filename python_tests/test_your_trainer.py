"""docs/your_trainer.md: its code runs as one program on two ranks, and moves what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ranks import run_ranks
from your_trainer_scenarios import blocks, run_page

pytestmark = pytest.mark.python


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "model")
    headings = list(dict.fromkeys(heading for heading, _ in blocks()))
    assert len(headings) == 6
    assert run_ranks(2, run_page, str(tmp_path)) == [headings] * 2
