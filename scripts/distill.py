"""Train a policy by on-policy distillation: teachers score its rollouts token by token.

posttrain distill --config tiny/distill
posttrain launch --config_file accelerate/ddp distill --config tiny/distill
"""

from importlib.util import find_spec
from pathlib import Path

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.distill import DistillConfig
from posttrain.config.paths import refuse_missing_checkpoint, refuse_partial_checkpoint
from posttrain.errors import ConfigError


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Train a policy by on-policy distillation.")
    recipe, options = parse_recipe(parser, DistillConfig, argv)

    for name, teacher in recipe.teachers.items():
        refuse_partial_checkpoint(teacher.path, key=f"teachers.{name}.path")
        refuse_missing_checkpoint(teacher.adapter, key=f"teachers.{name}.adapter")

    refuse_missing_checkpoint(recipe.simulate, key="simulate")
    if recipe.simulate is not None and find_spec("modelopt") is None:
        raise ConfigError("simulate needs ModelOpt: pip install 'posttrain[quantize]'")

    from data_builders.prompts.build import PromptPlan

    out = Path(recipe.out)
    # the names of graders and tools, and the files, before torch is loaded
    plan = PromptPlan(recipe.prompts, recipe.settings, seed=recipe.seed, out=out)

    from posttrain.pages.write import TrainingPage
    from posttrain.training.launch import SPLITS_WEIGHTS, requested_sharding
    from posttrain.training.output import RESUME
    from posttrain.training.rl.full_objective import full_objective
    from posttrain.training.rl.stage import GroupStage, grpo_arguments, reward_loop
    from posttrain.training.rl.teachers import open_teachers
    from reward.distill import DistillationReward
    from reward.kept_scores import KeptScorer, ScoreStore

    simulation = None
    if recipe.simulate is not None:
        # its file imports ModelOpt
        from posttrain.quantization.student import open_student

        simulation = open_student(recipe.simulate, student=str(recipe.model.path), out=out)

    prompts = plan.build()
    # a mistake in trainer: shows before a teacher is loaded
    args = grpo_arguments(recipe, out=out / RESUME)
    # connections to teachers live in this loop from the first step to the last
    with reward_loop() as (runner, stack):
        teachers = open_teachers(
            recipe.teachers,
            student=recipe.model,
            device=args.device,
            out=out,
            stack=stack,
            in_memory=recipe.teachers_in_memory,
            student_is_rounded=simulation is not None,
            processes=args.world_size if requested_sharding() in SPLITS_WEIGHTS else 1,
        )
        parents = plan.parents + teachers.parents
        if simulation is not None and simulation.parent is not None:
            parents.append(simulation.parent)
        stage = GroupStage(
            recipe,
            prompts=prompts.prompts,
            reward=DistillationReward(
                teachers.scorers,
                teacher_of=recipe.teacher_of,
                max_failure_rate=recipe.max_failure_rate,
            ),
            open_environment=plan.open_environment,
            runner=runner,
            method="distill",
            parents=parents,
            stats={
                **plan.stats(prompts),
                "objective": recipe.objective,
                "routes": recipe.teacher_of,
                "teachers": teachers.digests,
            },
            lines=teachers.lines,
            shares=recipe.shares,
            full=full_objective(recipe, teachers) if recipe.objective == "full" else None,
            simulation=simulation,
            frozen=teachers.frozen,
        )

        def keep_scores(process: int) -> None:
            if all(teacher.batched for teacher in teachers.scorers.values()):
                return
            store = ScoreStore(out / RESUME / "scores" / f"process-{process}")
            stack.callback(store.close)
            scorers = {
                name: teacher if teacher.batched else KeptScorer(teacher, store)
                for name, teacher in teachers.scorers.items()
            }
            stage.reward = DistillationReward(
                scorers,
                teacher_of=recipe.teacher_of,
                max_failure_rate=recipe.max_failure_rate,
                on_checkpoint=store.begin_file,
            )

        stage.run(
            dry_run=options.dry_run,
            page=TrainingPage(out),
            on_open=keep_scores,
            check_inputs=lambda: plan.check_inputs(out, parents),
        )


if __name__ == "__main__":
    run_command(main)
