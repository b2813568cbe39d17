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
        checkpoint: there already, of the quickstart.
        start: the quickstart's model, or a run of the study; None: the recipe's own, from scratch.
        own_profile: the domains of a smaller profile that the runs have in common.
        bits: the weights of linear layers have while rollouts are sampled; None: as in training.
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
# between rollouts of BITS and training
OFF, TRUNCATE = "loss.importance.sequence_limit=1.0e+9", "loss.importance.outside=truncate"
SEQUENCE_MASKED = (
    TRUNCATE, OFF, "loss.importance.token_low=0.0", "loss.importance.geometric_low=0.9",
    "loss.importance.geometric_high=1.1",
)  # fmt: skip
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
    "sequence_masked": Arm(SEQUENCE_MASKED, bits=BITS),
    "truncated": Arm((TRUNCATE, OFF, "loss.importance.token_low=0.2"), bits=BITS),
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
        ("uncorrected", "token_masked", "sequence_masked", "truncated", "Gaussian"),
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
        return [before_reading(one) or Score(float(_answered(one)), None, "") for one in attempts]


def _answered(attempt: Attempt) -> bool:
    called = detect_in_completion(attempt.completion, attempt.prompt).any
    return bool(attempt.completion.answer.strip()) and not called


class Study:
    """The runs below `out`, from the quickstart's artifacts in `base`."""

    def __init__(self, base: Path, out: Path, seeds: int) -> None:
        self.base, self.out, self.seeds = base, out, seeds

    def names(self, arm: str) -> list[str]:
        """Of an arm's runs, a run a seed."""
        if ARMS[arm].checkpoint is not None:
            return [arm]
        return [f"{arm}-{seed}" for seed in range(min(self.seeds, ARMS[arm].seeds))]

    def run(self, arms: Iterable[str]) -> None:
        """Train and evaluate what is missing, every arm's first seed first. A run is one process:
        importing torch costs as much as half an evaluation."""
        jobs = [(seed, arm, name) for arm in arms for seed, name in enumerate(self.names(arm))]
        # other arms start from a run of SFT
        for seed, arm, name in sorted(jobs, key=lambda job: (job[0], ARMS[job[1]].stage != "sft")):
            if (self.out / "eval" / name / MANIFEST).is_file():
                continue
            print(time.strftime("%H:%M:%S"), name, flush=True)
            log, cpu = self.out / f"log/{name}.log", self.out / f"cpu/{name}.json"
            for path in (log, cpu):
                path.parent.mkdir(parents=True, exist_ok=True)
            job = [JOB, json.dumps(self._commands(ARMS[arm], name, seed)), str(cpu)]
            job += [str(ARMS[arm].bits)] if ARMS[arm].bits else []
            with log.open("a") as to:
                subprocess.run([sys.executable, __file__, *job], check=True, stdout=to, stderr=to)

    def _commands(self, arm: Arm, name: str, seed: int) -> list[list[str]]:
        if arm.checkpoint is not None:
            return [self._evaluation(self.base / arm.checkpoint, name)]
        own = [f"out={self.out / name}", f"seed={seed}", *arm.overrides]
        commands = list[list[str]]()
        start = self.base / "sft" if arm.start == "sft" else self.out / str(arm.start)
        if arm.start is not None:
            own.append(f"model.path={start}")
        if arm.stage == "sft":
            own.append(f"data={self.base}/sft_data")
        else:
            profile = self.base / "profile"
            if arm.own_profile:
                profile = self.out / f"{PROFILE}{'-'.join((start.name, *arm.own_profile))}"
                commands.append(self._profile(profile, start, arm.own_profile))
            own += [f"pass_rates={profile}", f"trainer.max_steps={STEPS}", "max_epochs=20"]
        commands.append([arm.stage, arm.stage, *own])
        return [*commands, self._evaluation(self.out / name, name)]

    def _profile(self, out: Path, checkpoint: Path, domains: Sequence[str]) -> list[str]:
        """Fewer prompts than profile.yaml has, and look-ups that no call can answer."""
        counts = {"maths": 250, "logs": 180, "steps": 150}
        prompts = {f: self._prompts(f, f"train/{f}", most=2, count=n) for f, n in counts.items()}
        prompts["lookups"] = self._prompts(
            "lookups", "train/lookups", tools=True, most=1, count=100
        )
        no_call = self._prompts("no_call", "train/lookups", count=300)
        prompts["no_call"] = no_call | {"grader": "no_call"}
        own = given([prompts[domain] for domain in domains], 0.9)
        return ["profile_prompts", "profile", f"out={out}", f"checkpoint={checkpoint}", *own]

    def _evaluation(self, checkpoint: Path, name: str) -> list[str]:
        prompts = [
            *(self._prompts(f"{f}-easy", f"heldout/{f}", most=2) for f in FAMILIES),
            *(self._prompts(f"{f}-hard", f"heldout/{f}", least=3) for f in FAMILIES),
            self._prompts("lookups", "heldout/lookups", tools=True, most=1, count=200),
            self._prompts("no_tools", "heldout/lookups", count=300),
        ]
        others = [f"checkpoints.{other}=null" for other in ("rlvr", "rlhf", "rlvr_second")]
        own = [f"out={self.out}/eval/{name}", f"checkpoints.sft={checkpoint}"]
        return ["eval", "eval_rlvr", *own, *others, *given(prompts, 1.0)]

    def _prompts(
        self, name: str, file: str, *, tools: bool = False, least: int = 1, most: int = 4,
        count: int | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """A source of the tiny world; `least` and `most` are difficulties."""
        where = {"metadata.difficulty": {"ge": least, "le": most}, "metadata.turns": 1}
        where["metadata.with_tools"] = tools
        path = f"{self.base}/world/{file}.jsonl"
        return {"name": name, "format": "tiny_world", "path": path, "where": where, "count": count}

    def finished(self, arm: str) -> list[Path]:
        """The evaluations of an arm."""
        paths = [self.out / "eval" / name for name in self.names(arm)]
        return [path for path in paths if (path / MANIFEST).is_file()]

    def table(self, experiment: str) -> str:
        """What the runs that are there show; distances are from the experiment's first arm."""
        arms, figures = EXPERIMENTS[experiment]
        head = ["figure, %", "arm", "CPU s", "95 % over questions", "each seed",
                f"− {arms[0]}, over questions", "over seeds"]  # fmt: skip
        rows = list[list[str]]()
        for figure, arm in itertools.product(figures, arms):
            if runs := self.finished(arm):
                cpu = [json.loads((self.out / f"cpu/{run.name}.json").read_text()) for run in runs]
                spent = statistics.median(one.get(ARMS[arm].stage, 0.0) for one in cpu)
                row = [figure, arm, f"{spent:.0f}" if spent else ""]
                rows.append([*row, *cells(runs, self.finished(arms[0]), figure)])
        return as_table([head, *rows])

    def logged(self, experiment: str) -> str:
        """Means of the arms' logs, over steps and seeds, and the last five steps' reward."""
        rows = [["arm", *LOGGED, "reward at the end", "experts changed, %"]]
        for arm in EXPERIMENTS[experiment][0]:
            runs = [self.out / name for name in self.names(arm)]
            runs = [run for run in runs if (run / MANIFEST).is_file()]
            if ARMS[arm].stage == "rlvr" and runs:
                logs = [read_log(run) for run in runs]
                steps = [step for log in logs for step in log]
                means = [f"{statistics.fmean(s[key] for s in steps):.4f}" if key in steps[0] else ""
                         for key in LOGGED]  # fmt: skip
                end = statistics.fmean(step["reward"] for log in logs for step in log[-5:])
                start = ARMS[arm].start
                moved = [] if start == "sft" else [self.moved(str(start), run) for run in runs]
                rows.append([arm, *means, f"{end:.3f}", ", ".join(f"{m:.2f}" for m in moved)])
        return as_table(rows)

    def moved(self, start: str, run: Path) -> float:
        """The share of tokens and layers, in %, whose experts are others than at the start, in
        every twentieth held-out answer from before."""
        from rlvr_study_models import chosen_experts

        [records] = read_run(self.out / "eval" / start)[1].values()
        texts = tuple((*(r.completion.prompt_ids or ()), *(r.completion.steps[0].ids or ()))
                      for r in records[::20])  # fmt: skip
        before, after = (chosen_experts(model, texts) for model in (self.out / start, run))
        return 100 * float((before != after).any(-1).double().mean())


def as_table(rows: Sequence[Sequence[str]]) -> str:
    head, *others = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *others])


def read_log(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def given(prompts: Sequence[dict[str, Any]], thinking: float) -> list[str]:
    """Prompts, and the settings of recipes/tiny/profile.yaml and eval_rlvr.yaml for them."""
    plain = [prompt["name"] for prompt in prompts if prompt["name"] != "lookups"]
    settings = [
        {"name": "plain", "thinking": thinking, "sources": plain},
        {"name": "tools", "thinking": thinking, "sources": ["lookups"], "tools": "given"},
    ]
    return [f"prompts={json.dumps(prompts)}", f"settings={json.dumps(settings)}"]


@functools.cache
def values(run: Path, figure: str) -> Values:
    """A figure of a run's completions, each with its question."""
    (tasks, name), [records] = FIGURES[figure], read_run(run)[1].values()
    return values_of([r for r in records if r.prompt.source in tasks])[name]


def cells(runs: Sequence[Path], base: Sequence[Path], figure: str) -> list[str]:
    """A figure with its interval over questions, each seed's, and its distance from `base`."""
    own, others = ([values(run, figure) for run in side] for side in (runs, base))
    pooled = by_question([value for run in own for value in run])
    share = rate([value for run in own for value in run])
    assert share is not None, "every column has questions"
    each = [100 * statistics.fmean(value for value, _ in run) for run in own]
    row = [f"{100 * share.value:.1f} ({100 * share.low:.1f}–{100 * share.high:.1f})"]
    row.append(", ".join(f"{value:.1f}" for value in each) if len(each) > 1 else "")
    if runs == base or not others:
        return [*row, "", ""]
    changes = shared_changes(by_question([v for run in others for v in run]), pooled)
    low, high = changes.interval()
    row.append(f"{100 * changes.each.mean():+.1f} ({100 * low:+.1f} … {100 * high:+.1f})")
    before = [100 * statistics.fmean(value for value, _ in run) for run in others]
    before *= len(each) if len(before) == 1 else 1  # a checkpoint without seeds
    apart = [after - one for one, after in zip(before, each, strict=False)]
    if len(apart) < 3:
        return [*row, ""]
    half = float(stats.t.ppf(0.975, len(apart) - 1)) * statistics.stdev(apart)
    return [*row, f"{statistics.fmean(apart):+.1f} ± {half / math.sqrt(len(apart)):.1f}"]


def work(commands: Sequence[Sequence[str]], cpu: Path, bits: int | None = None) -> None:
    """Run stages one after the other in this process, and note the CPU seconds of each."""
    GRADERS["no_call"] = NoCall
    if bits is not None:
        from rlvr_study_models import RoundedRollouts

        from posttrain.training.rl.trainer import ENGINES

        ENGINES["in_process"] = functools.partial(RoundedRollouts, bits=bits)
    spent: dict[str, float] = json.loads(cpu.read_text()) if cpu.is_file() else {}
    for stage, recipe, *given in commands:
        begun = time.process_time()
        sys.argv = [stage, "--config", f"tiny/{recipe}", *given]
        runpy.run_path(str(ROOT / f"scripts/{stage}.py"), run_name="__main__")
        spent[stage] = spent.get(stage, 0.0) + time.process_time() - begun
        atomic_write_json(cpu, spent)


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
        for source, own in profile.stats["rates"].items():
            share = own["passes"] / own["scored"]
            print(f"{source:<8} passes {share:.3f}  buckets {own['buckets']}")
    for name in options.experiments:
        print(f"\n{name}\n\n{study.table(name)}\n\n{study.logged(name)}")


if __name__ == "__main__":
    if sys.argv[1:2] == [JOB]:
        work(json.loads(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
    else:
        main()
