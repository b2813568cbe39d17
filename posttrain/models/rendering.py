"""How a recipe's backend renders prompts, without the model's weights: for plans and artifacts.

renderer = renderer_of(recipe.backend, recipe.checkpoint)
renderer.text(prompt)  → "<|im_start|>system\\n<|im_end|>\\n<|im_start|>user\\n7*8?…<think>\\n"
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from posttrain.chat import ChatTemplate, profile_of, render
from posttrain.config.backend import BackendConfig, CompletionsBackend, Rendering
from posttrain.models.chat_template import chat_template_of
from posttrain.models.encoding import encoder_of, load_any_tokenizer
from posttrain.models.tokenizer import SpecialTokens, special_tokens
from posttrain.rollouts import Prompt


@dataclass(frozen=True)
class PromptRenderer:
    """A tokenizer with the chat template it renders with."""

    tokenizer: PreTrainedTokenizerBase
    template: ChatTemplate
    special: SpecialTokens

    def text(self, prompt: Prompt) -> str:
        """What the model is given to continue."""
        return render(
            prompt.messages,
            self.template,
            tools=prompt.tools,
            add_generation_prompt=True,
            enable_thinking=prompt.thinking,
        )

    def save(self, folder: Path) -> list[str]:
        """Write the tokenizer with this template; returns the names of the files."""
        self.tokenizer.chat_template = self.template.source
        written = self.tokenizer.save_pretrained(folder)
        return sorted(str(Path(path).relative_to(folder)) for path in written)

    def stats(self) -> dict[str, Any]:
        """For a manifest."""
        return {
            "template": {
                "name": self.template.name,
                "describe": profile_of(self.template).describe(),
            },
            "tokenizer": {
                "digest": encoder_of(self.tokenizer).digest,
                "end": self.special.end_token,
                "pad": self.special.pad_token,
                "stop_ids": list(self.special.stop_ids),
            },
        }


def renderer_of(backend: BackendConfig, checkpoint: str | None) -> PromptRenderer | None:
    """The renderer of a recipe's backend; `None` where a server renders and no checkpoint is named.

    Raises:
        ConfigError: a tokenizer or template that is not there.
        DataError: a checkpoint without a tokenizer.
    """
    path = checkpoint
    if isinstance(backend, CompletionsBackend) and backend.tokenizer is not None:
        path = backend.tokenizer
    if path is None:
        return None
    tokenizer = load_any_tokenizer(path)
    special = special_tokens(tokenizer, end_token=None, pad_token=None)
    how = backend if isinstance(backend, Rendering) else Rendering()
    template = chat_template_of(
        tokenizer, choice=how.chat_template, variables=dict(how.template_variables)
    )
    return PromptRenderer(tokenizer, template, special)
