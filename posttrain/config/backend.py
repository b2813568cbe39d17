"""The `backend:` block: which model is asked, and how it is reached.

A key's value is never in a recipe: `api_key_env` names the environment variable.
"""

import importlib.util
import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from posttrain.config.base import Strict
from posttrain.errors import ConfigError

Dtype = Literal["auto", "float32", "bfloat16"]
ThinkingSwitch = Literal[
    "fixed", "enable_thinking", "thinking", "enable_thinking_field", "reasoning_effort", "reasoning"
]
_URL = re.compile(r"https?://[^\s/]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Rendering(Strict):
    """How prompts are rendered where we do it.

    chat_template: `own` (the tokenizer's), `nemotron_3_nano` (the installed TRL's, pinned by
        digest), `hermes` (tools, no reasoning) or `chatml` (neither), `trl:FAMILY` such as
        `trl:qwen3` (the installed TRL's), or the path of a Jinja file.
    template_variables: fixed variables of the template, e.g. a date for one that reads a clock.
    """

    chat_template: str = "own"
    template_variables: dict[str, str] = Field(default_factory=dict)


class TransformersBackend(Rendering):
    """The model in this process.

    batch_size: prompts that are decoded together; rows that finish make room for others.
    dtype: `auto` is bfloat16 on a GPU, float32 on a CPU.
    device: `auto`, or a name that torch knows, such as `cpu` or `cuda:1`.
    attention: `auto`, or an implementation that transformers knows.
    """

    kind: Literal["transformers"]
    batch_size: int = Field(default=256, ge=1)
    dtype: Dtype = "auto"
    device: str = "auto"
    attention: str = "auto"


class VllmBackend(Rendering):
    """vLLM's offline engine in this process.

    dtype: `auto` is what the checkpoint says.
    tensor_parallel: GPUs the model is split over.
    gpu_memory: share of each GPU's memory that vLLM takes.
    max_length: longest prompt and completion together; null is the model's own limit.
    """

    kind: Literal["vllm"]
    dtype: Dtype = "auto"
    tensor_parallel: int = Field(default=1, ge=1)
    gpu_memory: float = Field(default=0.9, gt=0, le=1)
    max_length: int | None = Field(default=None, ge=1)


class Server(Strict):
    """An OpenAI-compatible server.

    url: with its version path, such as `http://localhost:8000/v1`.
    model: the name that the server knows it by.
    concurrency: requests under way at a time.
    timeout: seconds one attempt may take.
    retries: further attempts after 429, 5xx or a timeout; other failures are final.
    wait: seconds to wait for a server that refuses connections, such as one that still loads.
    api_key_env: the environment variable that holds the key; null sends none.
    """

    url: str
    model: str
    concurrency: int = Field(default=32, ge=1)
    timeout: float = Field(default=600.0, gt=0)
    retries: int = Field(default=6, ge=0)
    # three minutes until it is started again, and three in which it loads, with room
    wait: float = Field(default=600.0, ge=0)
    api_key_env: str | None = None

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str) -> str:
        if not _URL.match(url):
            raise ValueError(f"{url!r} is no address: it begins with http:// or https://")
        if "@" in url or "?" in url:
            raise ValueError("a url here holds no user, key or query; name api_key_env instead")
        return url.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        # the message must not repeat the value: it may be the key itself
        if name is not None and not _VARIABLE.fullmatch(name):
            raise ValueError("name an environment variable here, never a key")
        return name


class CompletionsBackend(Server, Rendering):
    """A server's `/completions` with token ids: prompts are rendered and parsed here.

    tokenizer: directory or hub id of the tokenizer; null takes the recipe's checkpoint.
    """

    kind: Literal["completions"]
    tokenizer: str | None = None


class ChatBackend(Server):
    """A server's `/chat/completions`: the server renders, and hides token ids.

    server: `any` gets standard fields alone; `openai` the same, with `max_completion_tokens`;
        `vllm` and `sglang` also `top_k`, and the reasoning and tool names of earlier turns.
    thinking: the field that switches thinking, as the server spells it: `enable_thinking` (vLLM and
        SGLang with Nemotron's and Qwen3's templates) and `thinking` (DeepSeek's, Granite's) in
        `chat_template_kwargs`; `enable_thinking_field` at the top (DashScope); `reasoning_effort`,
        `none` for off (OpenAI); `reasoning`, `enabled` (OpenRouter). `fixed` sends nothing:
        settings then name the one mode that the server uses.
    """

    kind: Literal["chat"]
    server: Literal["any", "openai", "vllm", "sglang"] = "any"
    thinking: ThinkingSwitch = "fixed"

    @property
    def extended(self) -> bool:
        """Whether the server takes fields beyond OpenAI's."""
        return self.server in ("vllm", "sglang")

    @property
    def length_field(self) -> str:
        """What bounds the new tokens."""
        return "max_completion_tokens" if self.server == "openai" else "max_tokens"

    def thinking_fields(self, *, on: bool) -> dict[str, Any]:
        """What to send for thinking on or off."""
        fields: dict[ThinkingSwitch, dict[str, Any]] = {
            "fixed": {},
            "enable_thinking": {"chat_template_kwargs": {"enable_thinking": on}},
            "thinking": {"chat_template_kwargs": {"thinking": on}},
            "enable_thinking_field": {"enable_thinking": on},
            # on: the server's own effort
            "reasoning_effort": {} if on else {"reasoning_effort": "none"},
            "reasoning": {"reasoning": {"enabled": on}},
        }
        return fields[self.thinking]


class ScriptedBackend(Strict):
    """No model: a scripted policy of the agentic tasks, to try a recipe. For evaluation alone.

    policy: its name, such as `oracle` or `no_op`; a family that has none of it does nothing.
    """

    kind: Literal["scripted"]
    policy: str


BackendConfig = Annotated[
    TransformersBackend | VllmBackend | CompletionsBackend | ChatBackend | ScriptedBackend,
    Field(discriminator="kind"),
]
# how a server is reached decides nothing about its answers: a run may go on with other values
REACHING: Any = {
    "url",
    "concurrency",
    "timeout",
    "retries",
    "wait",
    "api_key_env",
}  # of `model_dump`


def refuse_missing_vllm() -> None:
    """Raises ConfigError where vLLM is not installed; does not load it."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("backend.kind vllm needs the extra: pip install 'posttrain[vllm]'")


def check_checkpoint(backend: BackendConfig, checkpoint: str | None, key: str) -> None:
    """Raises ValueError where a backend needs the checkpoint that the recipe gives under `key`."""
    if checkpoint is None and not isinstance(backend, Server | ScriptedBackend):
        raise ValueError(f"{key} is required with backend.kind {backend.kind}")
    if checkpoint is None and backend.kind == "completions" and backend.tokenizer is None:
        raise ValueError(f"name backend.tokenizer, or in {key} what the server serves")
