"""The recipe of an audit, and the thresholds on masks that it shares with builds of SFT data."""

from pydantic import Field

from posttrain.config.base import Strict


class SupervisionLimits(Strict):
    """Limits that stop a build or fail an audit: shares of a source's sequences; null: no limit.

    The numbers are ours. `null` is for data that are meant to be so: texts whose every token is
    trained, for instance, have prompts and headers in the loss.

    nothing_trained: largest share without a trained token: no answer, or none left after clipping.
    min_end_trained: least share whose last answer ends with a trained end token; an answer without
        one teaches not to stop, and some are clipped in any long data.
    max_empty_answers: largest share with an answer of which the end token alone is trained: it
        teaches to stop at once.
    max_think_header: largest share that trains the `<think>` that the generation prompt opens, or
        its empty trace: inference gives it, the model is never to write it.
    max_turn_tokens: largest share that trains a token that opens turns, or the pad: an unmasked
        prompt, or a chat pasted into an answer.
    max_prompt_trained: largest share that trains a token of a system, user or tool turn, where
        these can be told apart.
    max_duplicated: largest share of copies of another sequence, beside the mixture's repeats; some
        sets repeat a short chat on purpose.
    """

    nothing_trained: float = Field(default=0.01, ge=0, le=1)
    min_end_trained: float | None = Field(default=0.95, ge=0, le=1)
    max_empty_answers: float | None = Field(default=0.01, ge=0, le=1)
    max_think_header: float | None = Field(default=0.01, ge=0, le=1)
    max_turn_tokens: float | None = Field(default=0.01, ge=0, le=1)
    max_prompt_trained: float | None = Field(default=0.01, ge=0, le=1)
    max_duplicated: float | None = Field(default=None, ge=0, le=1)


class AuditTokenizer(Strict):
    """The tokenizer that a data set was made with.

    path: a directory, or a hub id (then name its `revision`).
    revision: commit of a hub id.
    chat_template: `own` (the tokenizer's, if it has one), or as in a data recipe. It tells turns
        apart; without one, trained prompts are not looked for.
    stop_tokens: tokens that end a turn, beside the tokenizer's eos and `<|im_end|>`.
    """

    path: str
    revision: str | None = None
    chat_template: str = "own"
    stop_tokens: tuple[str, ...] = ()


class AuditConfig(Strict, stage="audit"):
    """One look at the loss masks of tokenised data.

    data: artifacts of the build stages, saved `datasets`, Parquet and Arrow files, folders of them.
    tokenizer: tokenizer of the ids; `null` takes the one in the first path.
    limits: limits that fail the audit.
    out: directory of an artifact with a report; `null` prints only.
    """

    data: tuple[str, ...] = Field(min_length=1)
    tokenizer: AuditTokenizer | None = None
    limits: SupervisionLimits = SupervisionLimits()
    out: str | None = None
