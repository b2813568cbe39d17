"""The recipe of an audit, and the thresholds on masks that it shares with builds of SFT data."""

from pydantic import Field

from posttrain.config.base import Strict


class SupervisionLimits(Strict):
    """What stops a build or fails an audit: shares of a source's sequences, ours; null: no limit.

    nothing_trained: most in which no token is trained: no answer, or none left after clipping.
    min_end_trained: least whose last answer ends with a trained end token; an answer without one
        teaches not to stop, and some are clipped in any long data.
    max_empty_answers: most with an answer whose end alone is trained: it teaches to stop at once.
    max_think_header: most in which the `<think>` that the generation prompt opens, or its empty
        trace, is trained: inference gives it, the model is never to write it.
    max_turn_tokens: most in which a token that opens turns, or the pad, is trained: an unmasked
        prompt, or a chat pasted into an answer.
    max_prompt_trained: most that train a token of a system, user or tool turn, where these show.
    min_trained: least share of trained *tokens*; long documents with a short answer are honest.
    max_duplicated: most that are copies of another sequence, beside the mixture's repeats; some
        sets repeat a short chat on purpose.
    max_empty_think: most that train an answer after an empty trace, right where nothing reasons.
    """

    nothing_trained: float = Field(default=0.01, ge=0, le=1)
    min_end_trained: float | None = Field(default=0.95, ge=0, le=1)
    max_empty_answers: float | None = Field(default=0.01, ge=0, le=1)
    max_think_header: float | None = Field(default=0.01, ge=0, le=1)
    max_turn_tokens: float | None = Field(default=0.01, ge=0, le=1)
    max_prompt_trained: float | None = Field(default=0.01, ge=0, le=1)
    min_trained: float | None = Field(default=None, ge=0, le=1)
    max_duplicated: float | None = Field(default=None, ge=0, le=1)
    max_empty_think: float | None = Field(default=None, ge=0, le=1)


class AuditTokenizer(Strict):
    """The tokenizer that a data set was made with.

    path: a directory, or a hub id (then name its `revision`).
    revision: commit of a hub id.
    chat_template: `own` (the tokenizer's, if it has one), or as in a data recipe. It
        tells turns apart; without one, trained prompts are not looked for.
    stop_tokens: tokens that end a turn, beside the tokenizer's eos and `<|im_end|>`.
    """

    path: str
    revision: str | None = None
    chat_template: str = "own"
    stop_tokens: tuple[str, ...] = ()


class AuditConfig(Strict, stage="audit"):
    """One look at the loss masks of tokenised data.

    data: artifacts of the build stages, saved `datasets`, Parquet and Arrow files, folders of them.
    tokenizer: what the ids mean; `null` takes the one in the first path.
    limits: what fails the audit.
    out: an artifact with a report; `null` prints only.
    """

    data: tuple[str, ...] = Field(min_length=1)
    tokenizer: AuditTokenizer | None = None
    limits: SupervisionLimits = SupervisionLimits()
    out: str | None = None
