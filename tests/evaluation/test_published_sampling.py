"""NVIDIA's evaluation recipe of Nemotron 3 Nano, task by task, against our suite."""

from __future__ import annotations

import pytest

from data_builders.prompts.evaluation import refuse_missing_data
from posttrain.config.eval import EvalConfig
from posttrain.config.load import load_recipe
from posttrain.errors import ConfigError

# packages/nemo-evaluator-launcher/examples/nemotron/local_nvidia_nemotron_3_nano_30b_a3b.yaml of
# NVIDIA-NeMo/Evaluator ac66aff: temperature, top_p, repeats, thinking
PUBLISHED = (0.99999, 0.99999)
TOOLS = (0.6, 0.95)
RULER = (0.00001, 0.99)
TABLE = {
    "aime25": (*PUBLISHED, 64, True),
    "gpqa": (*PUBLISHED, 8, True),
    "livecodebench": (*PUBLISHED, 8, True),
    "ifbench": (*PUBLISHED, 8, True),
    "aa_lcr": (*PUBLISHED, 8, True),
    "scicode": (*PUBLISHED, 8, True),
    "mmlu_pro": (*PUBLISHED, 1, True),
    "mmlu_prox": (*PUBLISHED, 1, True),
    "hle": (*PUBLISHED, 1, True),
    "tau2_telecom": (*TOOLS, 8, True),
    "bfcl_v3": (*TOOLS, 1, True),
    "ruler_64k": (*RULER, 1, False),
    "ruler_64k_qa": (*RULER, 1, False),
    "ruler_128k": (*RULER, 1, False),
    "ruler_128k_qa": (*RULER, 1, False),
}


def test_every_task_samples_as_published():
    recipe = load_recipe("recipes/nemotron-3-nano/eval_suite.yaml", EvalConfig)
    found: dict[str, tuple[float, float, int, bool]] = {}
    for setting in recipe.settings:
        sampling = recipe.sampling_of(setting.name)
        assert sampling.max_tokens == 131072
        for task in setting.sources or ():
            own = sampling.temperature, sampling.top_p, recipe.n_of(setting.name)
            assert task not in found
            found[task] = (*own, setting.thinking != 0)
    assert found == TABLE


def test_a_benchmark_does_not_shrink_for_want_of_data():
    counts = {"rows_in": 541, "dropped": {"gold_refused: nltk_data_missing": 64}}
    with pytest.raises(ConfigError, match=r"64 of 541 rows .* punkt_tab"):
        refuse_missing_data("ifeval", counts)
    refuse_missing_data("ifeval", {"rows_in": 541, "dropped": {"gold_refused: no_gold": 1}})
