"""The schema of every stage that takes a recipe, by the stage's name."""

from pydantic import BaseModel

from posttrain.config.audit import AuditConfig
from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.config.build_genrm import BuildGenRmConfig
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.dpo import DpoConfig
from posttrain.config.eval import EvalConfig, EvalGenRmConfig, WinRateConfig
from posttrain.config.rlhf import GenRmConfig, RlhfConfig
from posttrain.config.rlvr import RlvrConfig
from posttrain.config.sample import ProfileConfig, SampleConfig
from posttrain.config.sft import SftConfig
from posttrain.config.synthesize import SynthesizeConfig

SCHEMAS: dict[str, type[BaseModel]] = {
    "build_sft": BuildSftConfig,
    "sft": SftConfig,
    "sample": SampleConfig,
    "build_dpo": BuildDpoConfig,
    "dpo": DpoConfig,
    "build_genrm": BuildGenRmConfig,
    "genrm": GenRmConfig,
    "rlhf": RlhfConfig,
    "profile_prompts": ProfileConfig,
    "rlvr": RlvrConfig,
    "eval": EvalConfig,
    "eval_genrm": EvalGenRmConfig,
    "win_rate": WinRateConfig,
    "audit": AuditConfig,
    "synthesize": SynthesizeConfig,
}
