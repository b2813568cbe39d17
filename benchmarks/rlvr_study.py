"""RLVR on the tiny world, arm against arm: curriculum, environments, SFT trained on, options, DPO.

    make quickstart && posttrain profile_prompts --config tiny/profile
    python benchmarks/rlvr_study.py --out runs/study order sft single
    python benchmarks/rlvr_study.py --out runs/study --seeds 1 overlong     # at most one a arm

Every arm starts from the quickstart's SFT model and differs from `recipes/tiny/rlvr.yaml` in its
overrides and `STEPS`; it is measured on held-out questions, one sample each. Started again it goes
on where it was; experiments share their arms.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import runpy
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from posttrain.chat.detect import detect_in_completion
from posttrain.evaluation.compare import shared_changes
from posttrain.evaluation.intervals import Values, by_question, rate
from posttrain.evaluation.metrics import values_of
from posttrain.evaluation.run import read_run
from posttrain.records import Score
from posttrain.rollouts import Prompt
from posttrain.runs import MANIFEST, atomic_write_json, read_artifact
from reward.graders import GRADERS
from reward.graders.base import Attempt, before_reading

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = ("maths", "logs", "steps")
DOMAINS = (*FAMILIES, "lookups")
STEPS = 20
PROFILE = "profile-"  # what the arms' own begin with
JOB = "job"  # of the driver's own processes: `work`


@dataclass(frozen=True)
class Arm:
    """Runs that differ in their seed.

    Attributes:
        checkpoint: name of a checkpoint of the quickstart; such an arm is not trained.
        start: the quickstart's model, or a run of the study; None: the recipe's own, from scratch.
        own_profile: the domains of a smaller profile that the runs have in common.
        bits: bits of the weights of linear layers while rollouts are sampled; None: as in training.
    """

    overrides: tuple[str, ...] = ()
    seeds: int = 3
    stage: str = "rlvr"
    checkpoint: str | None = None
    start: str | None = "sft"
    own_profile: tuple[str, ...] = ()
    bits: int | None = None


# more of the quickstart's SFT, about the CPU seconds of an RLVR run; schedules begin again
SFT_ON = (
    "model.config=null", "keep_epochs=[]", "trainer.eval_strategy=no", "trainer.max_steps=1200",
)  # fmt: skip
LIMIT = "sampling.max_tokens=48"
# importance sampling between rollouts of BITS and training
NO_SEQUENCE_LIMIT = "loss.importance.sequence_limit=1.0e+9"
TRUNCATE = "loss.importance.outside=truncate"
BITS = 3
HYBRID = {
    "model_type": "nemotron_h", "hidden_size": 96, "intermediate_size": 192,
    "layers_block_type": [
        "linear_attention", "moe", "full_attention", "moe", "linear_attention", "mlp"
    ],
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24,
    "ssm_state_size": 16, "mamba_num_heads": 6, "mamba_head_dim": 32, "n_groups": 2,
    "chunk_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 96, "moe_shared_expert_intermediate_size": 96,
    "max_position_embeddings": 2048, "initializer_range": 0.08,
}  # fmt: skip
HYBRID_SFT = (
    f"model.config={json.dumps(HYBRID)}", "keep_epochs=[]", "trainer.eval_strategy=no",
    "trainer.max_steps=2000",
)  # fmt: skip
OF_HYBRID: dict[str, Any] = {"start": "hybrid-0", "own_profile": DOMAINS}
ARMS = {
    "SFT": Arm(checkpoint="sft"),
    "DPO": Arm(checkpoint="dpo"),
    "Gaussian": Arm(),
    "random": Arm(("curriculum.order=random",)),
    **{  # one domain gets every place of a batch
        f"{domain}_alone": Arm(tuple(f"domains.{d}=null" for d in DOMAINS if d != domain))
        for domain in DOMAINS
    },
    "SFT_longer": Arm(SFT_ON, 1, "sft"),
    "SFT_longer_slow": Arm((*SFT_ON, "trainer.learning_rate=3.0e-4"), stage="sft"),  # RLVR's
    "limit_masked": Arm((LIMIT, "loss.overlong=mask")),
    "limit_trained": Arm((LIMIT, "loss.overlong=train")),
    "dynamic_sampling": Arm(('dynamic_sampling={"max_gen_batches": 4}',)),
    "difficulty_pools": Arm(("curriculum.order=difficulty_pools",)),
    "no_call_reward": Arm(("domains.no_call.ratio=0.25",), own_profile=(*DOMAINS, "no_call")),
    "uncorrected": Arm(("loss.importance=null",), bits=BITS),
    "token_masked": Arm(bits=BITS),  # the recipe's
    "truncated": Arm((TRUNCATE, NO_SEQUENCE_LIMIT, "loss.importance.token_low=0.2"), bits=BITS),
    "hybrid": Arm(HYBRID_SFT, 1, "sft", start=None),
    "router_frozen": Arm(**OF_HYBRID),  # the recipe's
    "router_trained": Arm(("moe.freeze_router=false",), **OF_HYBRID),
}


# figure → the held-out tasks that it is measured on, and its name in an evaluation
FIGURES: dict[str, tuple[tuple[str, ...], str]] = {
    **{family: ((f"{family}-easy",), "accuracy") for family in FAMILIES},
    "easy": (tuple(f"{family}-easy" for family in FAMILIES), "accuracy"),
    "hard": (tuple(f"{family}-hard" for family in FAMILIES), "accuracy"),
    "lookups": (("lookups",), "accuracy"),
    "declared calls": (("lookups",), "called_tool"),
    "undeclared calls": (("no_tools",), "hallucination"),
}
ALONE = tuple(f"{domain}_alone" for domain in DOMAINS)
# experiment → its arms, the first of which the others are compared with, and its figures
EXPERIMENTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "order": (("random", "Gaussian", "SFT"), ("easy", "hard")),
    "sft": (
        ("SFT_longer_slow", "Gaussian", "SFT", "SFT_longer"), ("easy", "hard", *FAMILIES)
    ),
    "single": (
        ("SFT", *ALONE, "Gaussian"), (*FAMILIES, "hard", "lookups", "undeclared calls")
    ),
    "overlong": (("limit_masked", "limit_trained", "Gaussian"), ("easy", "hard")),
    "online": (("Gaussian", "dynamic_sampling", "difficulty_pools"), ("easy", "hard")),
    "importance": (
        ("uncorrected", "token_masked", "truncated", "Gaussian"),
        ("easy", "hard"),
    ),
    "router": (("router_trained", "router_frozen", "hybrid"), ("easy", "hard", *FAMILIES)),
    "calls": (
        ("SFT", "DPO", "Gaussian", "no_call_reward"),
        ("undeclared calls", "declared calls", "lookups", "easy"),
    ),
}  # fmt: skip


LOGGED = (
    "reward", "logp_difference", "importance", "masked_tokens", "masked_completions", "entropy",
    "max_violation",
)  # fmt: skip


class NoCall:
    """An answer without a call gets 1: what DPO's `hallucination_penalty` pairs prefer."""

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        return [None for _ in prompts]

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        scores: list[Score] = []
        for attempt in attempts:
            failure = before_reading(attempt)
            scores.append(failure or Score(float(_answers_without_call(attempt)), None, ""))
        return scores


def _answers_without_call(attempt: Attempt) -> bool:
    called = detect_in_completion(attempt.completion, attempt.prompt).any
    return bool(attempt.completion.answer.strip()) and not called


class Study:
    """The runs below `out`, from the quickstart's artifacts in `base`."""

    def __init__(self, base: Path, out: Path, seeds: int) -> None:
        self.base = base
        self.out = out
        self.seeds = seeds

    def names(self, arm: str) -> list[str]:
        """Names of an arm's runs, a run a seed."""
        if ARMS[arm].checkpoint is not None:
            return [arm]
        return [f"{arm}-{seed}" for seed in range(min(self.seeds, ARMS[arm].seeds))]

    def run(self, arms: Iterable[str]) -> None:
        """Train and evaluate what is missing, every arm's first seed first.

        A run is one process: importing torch costs as much as half an evaluation.
        """
        jobs = [(seed, arm, name) for arm in arms for seed, name in enumerate(self.names(arm))]
        # other arms start from a run of SFT
        for seed, arm, name in sorted(jobs, key=lambda job: (job[0], ARMS[job[1]].stage != "sft")):
            if (self.out / "eval" / name / MANIFEST).is_file():
                continue
            print(time.strftime("%H:%M:%S"), name, flush=True)
            log_path = self.out / f"log/{name}.log"
            cpu_path = self.out / f"cpu/{name}.json"
            for path in (log_path, cpu_path):
                path.parent.mkdir(parents=True, exist_ok=True)
            job = [JOB, json.dumps(self._commands(ARMS[arm], name, seed)), str(cpu_path)]
            if ARMS[arm].bits:
                job.append(str(ARMS[arm].bits))
            command = [sys.executable, __file__, *job]
            with log_path.open("a") as log:
                subprocess.run(command, check=True, stdout=log, stderr=log)

    def _commands(self, arm: Arm, name: str, seed: int) -> list[list[str]]:
        """Commands of a run: stage, recipe and overrides of each."""
        if arm.checkpoint is not None:
            return [self._evaluation(self.base / arm.checkpoint, name)]
        overrides = [f"out={self.out / name}", f"seed={seed}", *arm.overrides]
        commands: list[list[str]] = []
        start = self.base / "sft" if arm.start == "sft" else self.out / str(arm.start)
        if arm.start is not None:
            overrides.append(f"model.path={start}")
        if arm.stage == "sft":
            overrides.append(f"data={self.base}/sft_data")
        else:
            profile = self.base / "profile"
            if arm.own_profile:
                profile = self.out / f"{PROFILE}{'-'.join((start.name, *arm.own_profile))}"
                commands.append(self._profile(profile, start, arm.own_profile))
            overrides += [f"pass_rates={profile}", f"trainer.max_steps={STEPS}", "max_epochs=20"]
        commands.append([arm.stage, arm.stage, *overrides])
        return [*commands, self._evaluation(self.out / name, name)]

    def _profile(self, out: Path, checkpoint: Path, domains: Sequence[str]) -> list[str]:
        """Command of a profile of fewer prompts than profile.yaml has, and of look-ups that no
        call can answer."""
        counts = {"maths": 250, "logs": 180, "steps": 150}
        sources: dict[str, dict[str, Any]] = {}
        for family, count in counts.items():
            sources[family] = self._source(family, f"train/{family}", hardest=2, count=count)
        sources["lookups"] = self._source(
            "lookups", "train/lookups", tools=True, hardest=1, count=100
        )
        no_call = self._source("no_call", "train/lookups", count=300)
        sources["no_call"] = no_call | {"grader": "no_call"}
        prompts = prompt_overrides([sources[domain] for domain in domains], thinking=0.9)
        return ["profile_prompts", "profile", f"out={out}", f"checkpoint={checkpoint}", *prompts]

    def _evaluation(self, checkpoint: Path, name: str) -> list[str]:
        """Command of the evaluation of a checkpoint on held-out questions."""
        sources = [
            *(
                self._source(f"{family}-easy", f"heldout/{family}", hardest=2)
                for family in FAMILIES
            ),
            *(
                self._source(f"{family}-hard", f"heldout/{family}", easiest=3)
                for family in FAMILIES
            ),
            self._source("lookups", "heldout/lookups", tools=True, hardest=1, count=200),
            self._source("no_tools", "heldout/lookups", count=300),
        ]
        overrides = [f"out={self.out}/eval/{name}", f"checkpoints.sft={checkpoint}"]
        # the recipe's other checkpoints
        overrides += [f"checkpoints.{trained}=null" for trained in ("rlvr", "rlhf", "rlvr_second")]
        return ["eval", "eval_rlvr", *overrides, *prompt_overrides(sources, thinking=1.0)]

    def _source(
        self,
        name: str,
        file: str,
        *,
        tools: bool = False,
        easiest: int = 1,
        hardest: int = 4,
        count: int | None = None,
    ) -> dict[str, Any]:
        """Source of prompts of the tiny world, of the difficulties from `easiest` to `hardest`."""
        conditions = {
            "metadata.difficulty": {"ge": easiest, "le": hardest},
            "metadata.turns": 1,
            "metadata.with_tools": tools,
        }
        path = f"{self.base}/world/{file}.jsonl"
        source = {"name": name, "format": "tiny_world", "path": path, "where": conditions}
        return source | {"count": count}

    def finished(self, arm: str) -> list[Path]:
        """Folders of an arm's finished evaluations."""
        paths = [self.out / "eval" / name for name in self.names(arm)]
        return [path for path in paths if (path / MANIFEST).is_file()]

    def table(self, experiment: str) -> str:
        """Table of the finished runs; distances are from the experiment's first arm."""
        arms, figures = EXPERIMENTS[experiment]
        head = ["figure, %", "arm", "CPU s", "95 % over questions", "each seed"]
        head += [f"− {arms[0]}, over questions", "over seeds"]
        rows: list[list[str]] = []
        for figure, arm in itertools.product(figures, arms):
            runs = self.finished(arm)
            if not runs:
                continue
            seconds: list[float] = []
            for run in runs:
                seconds_by_stage = json.loads((self.out / f"cpu/{run.name}.json").read_text())
                seconds.append(seconds_by_stage.get(ARMS[arm].stage, 0.0))
            median = statistics.median(seconds)
            row = [figure, arm, f"{median:.0f}" if median else ""]
            rows.append([*row, *cells(runs, self.finished(arms[0]), figure)])
        return as_table([head, *rows])

    def logged(self, experiment: str) -> str:
        """Means of the arms' logs, over steps and seeds, and the last five steps' reward."""
        rows = [["arm", *LOGGED, "reward at the end", "experts changed, %"]]
        for arm in EXPERIMENTS[experiment][0]:
            runs = [self.out / name for name in self.names(arm)]
            runs = [run for run in runs if (run / MANIFEST).is_file()]
            if ARMS[arm].stage != "rlvr" or not runs:
                continue
            logs = [read_log(run) for run in runs]
            steps = list(itertools.chain.from_iterable(logs))
            means: list[str] = []
            for key in LOGGED:
                mean = ""
                if key in steps[0]:
                    mean = f"{statistics.fmean(step[key] for step in steps):.4f}"
                means.append(mean)
            last_steps = itertools.chain.from_iterable(log[-5:] for log in logs)
            last_reward = statistics.fmean(step["reward"] for step in last_steps)
            start = ARMS[arm].start
            changed: list[str] = []
            if start != "sft":
                changed = [f"{self.changed_experts(str(start), run):.2f}" for run in runs]
            rows.append([arm, *means, f"{last_reward:.3f}", ", ".join(changed)])
        return as_table(rows)

    def changed_experts(self, start: str, run: Path) -> float:
        """Share of tokens and layers, in %, whose experts are others than at the start.

        Read are the tokens of every twentieth held-out answer of the model at the start.
        """
        from rlvr_study_models import chosen_experts

        [records] = read_run(self.out / "eval" / start)[1].values()
        texts: list[tuple[int, ...]] = []
        for record in records[::20]:
            prompt_ids = record.completion.prompt_ids or ()
            texts.append((*prompt_ids, *(record.completion.steps[0].ids or ())))
        before, after = (chosen_experts(model, tuple(texts)) for model in (self.out / start, run))
        return 100 * float((before != after).any(-1).double().mean())


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown table; the first row is its head."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


def read_log(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def prompt_overrides(sources: Sequence[dict[str, Any]], *, thinking: float) -> list[str]:
    """Overrides for these prompts, with the settings of recipes/tiny/profile.yaml."""
    without_tools = [source["name"] for source in sources if source["name"] != "lookups"]
    settings = [
        {"name": "plain", "thinking": thinking, "sources": without_tools},
        {"name": "tools", "thinking": thinking, "sources": ["lookups"], "tools": "given"},
    ]
    return [f"prompts={json.dumps(sources)}", f"settings={json.dumps(settings)}"]


@functools.cache
def values(run: Path, figure: str) -> Values:
    """Values of a figure of a run's completions, each with its question."""
    tasks, name = FIGURES[figure]
    [records] = read_run(run)[1].values()
    return values_of([record for record in records if record.prompt.source in tasks])[name]


def cells(runs: Sequence[Path], base: Sequence[Path], figure: str) -> list[str]:
    """Table cells of a figure: interval over questions, each seed's, and distances from `base`."""
    values_by_run = [values(run, figure) for run in runs]
    pooled = list(itertools.chain.from_iterable(values_by_run))
    share = rate(pooled)
    assert share is not None, "every column has questions"
    seed_means = [_percent_mean(run_values) for run_values in values_by_run]
    row = [f"{100 * share.value:.1f} ({100 * share.low:.1f}–{100 * share.high:.1f})"]
    row.append(", ".join(f"{mean:.1f}" for mean in seed_means) if len(runs) > 1 else "")
    if runs == base or not base:
        return [*row, "", ""]
    base_values = [values(run, figure) for run in base]
    pooled_base = list(itertools.chain.from_iterable(base_values))
    changes = shared_changes(by_question(pooled_base), by_question(pooled))
    low, high = changes.interval()
    row.append(f"{100 * changes.each.mean():+.1f} ({100 * low:+.1f} … {100 * high:+.1f})")
    base_means = [_percent_mean(run_values) for run_values in base_values]
    if len(base_means) == 1:  # a checkpoint without seeds
        base_means *= len(seed_means)
    differences = [
        mean - base_mean for base_mean, mean in zip(base_means, seed_means, strict=False)
    ]
    n = len(differences)
    if n < 3:
        return [*row, ""]
    half_width = float(stats.t.ppf(0.975, n - 1)) * statistics.stdev(differences) / math.sqrt(n)
    return [*row, f"{statistics.fmean(differences):+.1f} ± {half_width:.1f}"]


def _percent_mean(run_values: Values) -> float:
    return 100 * statistics.fmean(value for value, _ in run_values)


def work(commands: Sequence[Sequence[str]], cpu: Path, bits: int | None = None) -> None:
    """Run stages one after the other in this process, and note the CPU seconds of each."""
    GRADERS["no_call"] = NoCall
    if bits is not None:
        from rlvr_study_models import RoundedRollouts

        from posttrain.training.rl.trainer import ENGINES

        ENGINES["in_process"] = functools.partial(RoundedRollouts, bits=bits)
    seconds: dict[str, float] = json.loads(cpu.read_text()) if cpu.is_file() else {}
    for stage, recipe, *overrides in commands:
        start = time.process_time()
        sys.argv = [stage, "--config", f"tiny/{recipe}", *overrides]
        runpy.run_path(str(ROOT / f"scripts/{stage}.py"), run_name="__main__")
        seconds[stage] = seconds.get(stage, 0.0) + time.process_time() - start
        atomic_write_json(cpu, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiments", nargs="+", choices=[*EXPERIMENTS], metavar="EXPERIMENT")
    parser.add_argument("--base", type=Path, default=Path("runs/tiny"), help="the quickstart's")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3, help="at most")
    parser.add_argument("--tables", action="store_true", help="of what there is; run nothing")
    options = parser.parse_args()
    study = Study(options.base, options.out, options.seeds)
    if not options.tables:
        study.run(dict.fromkeys(a for name in options.experiments for a in EXPERIMENTS[name][0]))
    for path in (options.base / "profile", *sorted(options.out.glob(f"{PROFILE}*"))):
        print(path)
        profile = read_artifact(path, kind="pass_rates", verify=False)
        for source, rates in profile.stats["rates"].items():
            share = rates["passes"] / rates["scored"]
            print(f"{source:<8} passes {share:.3f}  buckets {rates['buckets']}")
    for name in options.experiments:
        print(f"\n{name}\n\n{study.table(name)}\n\n{study.logged(name)}")


if __name__ == "__main__":
    if sys.argv[1:2] == [JOB]:
        work(json.loads(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
    else:
        main()
