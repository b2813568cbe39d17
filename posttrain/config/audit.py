"""The recipe of an audit: `posttrain audit --config F`, or its keys alone on the command line.

    data: [data/packed]
    tokenizer: {path: Qwen/Qwen3-0.6B, revision: c1899de…}
    limits: {min_trained: 0.1}
    out: runs/audit_packed

Paths are relative to the directory the command is run in.
"""

from __future__ import annotations

from pydantic import Field

from posttrain.config.base import Strict
from posttrain.config.supervision import SupervisionLimits


class AuditTokenizer(Strict):
    """The tokenizer that a data set was made with.

    Args:
        path: a directory, or a hub id (then name its `revision`).
        revision: commit of a hub id.
        chat_template: `own` (the tokenizer's, if it has one), `nemotron_3_nano`, or a Jinja file.
            It tells turns apart; without one, trained prompts are not looked for.
        stop_tokens: tokens that end a turn, beside the tokenizer's eos and `<|im_end|>`.
    """

    path: str
    revision: str | None = None
    chat_template: str = "own"
    stop_tokens: tuple[str, ...] = ()


class AuditConfig(Strict):
    """One look at the loss masks of tokenised data.

    Args:
        data: artifacts (`sft_data`, `dpo_data`), directories of `datasets.save_to_disk`, Parquet
            and Arrow files, folders of them.
        tokenizer: what the ids mean; `null` takes the one in the first path.
        limits: what fails the audit.
        out: an artifact with a report; `null` prints only.
    """

    data: tuple[str, ...] = Field(min_length=1)
    tokenizer: AuditTokenizer | None = None
    limits: SupervisionLimits = SupervisionLimits()
    out: str | None = None
