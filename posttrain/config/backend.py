"""The `backend:` block: the engine or server of a model.

A recipe never holds an API key: `api_key_env` names the environment variable that does.
"""

import importlib.util
import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from posttrain.config.base import Strict
from posttrain.errors import ConfigError

Dtype = Literal["auto", "float32", "bfloat16"]
ThinkingSwitch = Literal[
    "fixed", "enable_thinking", "thinking", "enable_thinking_field", "reasoning_effort", "reasoning"
]
_URL = re.compile(r"https?://[^\s/]+(/\S*)?")
_PORTS = {"http": 80, "https": 443}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Rendering(Strict):
    """Rendering of prompts, for backends that take token ids.

    chat_template: `own` (the tokenizer's), `nemotron_3_nano` (the installed TRL's, pinned by
        digest), `hermes` (tools, no reasoning) or `chatml` (neither), `trl:FAMILY` such as
        `trl:qwen3` (the installed TRL's), or the path of a Jinja file.
    template_variables: fixed variables of the template, e.g. a date for one that reads a clock.
    """

    chat_template: str = "own"
    template_variables: dict[str, str] = Field(default_factory=dict)


class TransformersBackend(Rendering):
    """The model in this process.

    batch_size: prompts that are decoded together; a finished row makes room for another.
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

    dtype: `auto` is the dtype that the checkpoint states.
    tensor_parallel: number of GPUs that the model is split over.
    gpu_memory: share of each GPU's memory that vLLM takes.
    max_length: tokens of prompt and completion together at most; null is the model's own limit.
    """

    kind: Literal["vllm"]
    dtype: Dtype = "auto"
    tensor_parallel: int = Field(default=1, ge=1)
    gpu_memory: float = Field(default=0.9, gt=0, le=1)
    max_length: int | None = Field(default=None, ge=1)


class Server(Strict):
    """An OpenAI-compatible server, or several that serve the same model.

    url: address with the version path, such as `http://localhost:8000/v1`; a list: replicas. Each
        request goes to the one with the fewest in flight, and one that dies is left out.
    model: name of the model on the server.
    concurrency: requests under way at a time, on each replica.
    timeout: seconds that one attempt may take; an adapter is loaded in one attempt or not.
    retries: further attempts after 429, 5xx or a timeout; other failures are final.
    wait: seconds to wait for a server that refuses connections, such as one that still loads; of
        replicas, while none answers.
    api_key_env: environment variable that holds the API key; null sends none.
    """

    url: str | tuple[str, ...]
    model: str
    concurrency: int = Field(default=32, ge=1)
    timeout: float = Field(default=600.0, gt=0)
    retries: int = Field(default=6, ge=0)
    # three minutes until somebody restarts a server, three in which it loads, and some more
    wait: float = Field(default=600.0, ge=0)
    api_key_env: str | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        """Address of each replica."""
        return (self.url,) if isinstance(self.url, str) else self.url

    @property
    def addresses(self) -> str:
        """The addresses as a text, for messages."""
        return ", ".join(self.urls)

    @property
    def total_concurrency(self) -> int:
        """Requests under way at a time, on all replicas."""
        return self.concurrency * len(self.urls)

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if isinstance(url, str):
            return _address(url)
        addresses = tuple(_address(each) for each in url)
        if not addresses:
            raise ValueError("name an address, or a list of them")
        if len(set(map(_destination, addresses))) < len(addresses):
            raise ValueError("an address is listed twice; raise concurrency to send it more")
        return addresses

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        # the message must not repeat the value: it may be the key itself
        if name is not None and not _VARIABLE.fullmatch(name):
            raise ValueError("name an environment variable here, never a key")
        return name


def _address(url: str) -> str:
    """An address without a slash at its end. Raises ValueError where it is none."""
    if not _URL.fullmatch(url):
        raise ValueError(
            f"{url!r} is no address: it begins with http:// or https:// and holds no blank"
        )
    if "@" in url or "?" in url:
        raise ValueError("a url here holds no user, key or query; name api_key_env instead")
    return url.rstrip("/")


def _destination(url: str) -> tuple[str | None, int, str]:
    """Host, port and path of an address, the same for all spellings of it."""
    parts = urlsplit(url)
    return parts.hostname, parts.port or _PORTS[parts.scheme], parts.path


class CompletionsBackend(Server, Rendering):
    """A server's `/completions` with token ids: prompts are rendered and parsed here.

    tokenizer: directory or hub id of the tokenizer; null takes the recipe's checkpoint.
    """

    kind: Literal["completions"]
    tokenizer: str | None = None


class ChatBackend(Server):
    """A server's `/chat/completions`: the server renders, and hides token ids.

    server: kind of server: `any` is sent standard fields alone; `openai` the same, with
        `max_completion_tokens`; `vllm` and `sglang` also `top_k`, and the reasoning and tool names
        of earlier turns.
    thinking: field that switches thinking, as the server spells it: `enable_thinking` (vLLM and
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
        """True if the server takes fields beyond OpenAI's."""
        return self.server in ("vllm", "sglang")

    @property
    def length_field(self) -> str:
        """Name of the field that bounds the new tokens."""
        return "max_completion_tokens" if self.server == "openai" else "max_tokens"

    def thinking_fields(self, *, on: bool) -> dict[str, Any]:
        """Fields of a request that switch thinking on or off."""
        fields: dict[ThinkingSwitch, dict[str, Any]] = {
            "fixed": {},
            "enable_thinking": {"chat_template_kwargs": {"enable_thinking": on}},
            "thinking": {"chat_template_kwargs": {"thinking": on}},
            "enable_thinking_field": {"enable_thinking": on},
            # with thinking on, the server chooses the effort
            "reasoning_effort": {} if on else {"reasoning_effort": "none"},
            "reasoning": {"reasoning": {"enabled": on}},
        }
        return fields[self.thinking]


class ScriptedBackend(Strict):
    """A scripted policy of the agentic tasks in place of a model, to try an evaluation's recipe.

    policy: name of the policy, such as `oracle` or `no_op`; it does nothing in a family that has no
        policy of this name.
    """

    kind: Literal["scripted"]
    policy: str


BackendConfig = Annotated[
    TransformersBackend | VllmBackend | CompletionsBackend | ChatBackend | ScriptedBackend,
    Field(discriminator="kind"),
]
# keys of a server that change nothing about its answers: a run may be resumed with other values.
# To be excluded by `model_dump`, whose argument has no public type
REACHING: Any = {"url", "concurrency", "timeout", "retries", "wait", "api_key_env"}


def refuse_missing_vllm() -> None:
    """Raise ConfigError if vLLM is not installed; vLLM is not loaded."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("backend.kind vllm needs the extra: pip install 'posttrain[vllm]'")


def is_served(backend: BackendConfig) -> bool:
    """True if a backend loads no weights here: a server has them, or a script answers."""
    return isinstance(backend, Server | ScriptedBackend)


def check_checkpoint(backend: BackendConfig, checkpoint: str | None, key: str) -> None:
    """Raise ValueError if a backend needs a checkpoint and the recipe gives none under `key`."""
    if checkpoint is None and not is_served(backend):
        raise ValueError(f"{key} is required with backend.kind {backend.kind}")
    if checkpoint is None and backend.kind == "completions" and backend.tokenizer is None:
        raise ValueError(f"name backend.tokenizer, or in {key} what the server serves")
