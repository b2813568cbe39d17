"""A conversation in the terminal: its history, settings, tools and commands; and the samplers it
talks to, of a checkpoint in this process or of a server, both streaming.

Every turn is a new prompt with the whole history, which the template renders as in training. Within
a turn the steps between tool calls continue each other's tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from posttrain.chat.masks import message_texts
from posttrain.chat.profile import writes_reasoning
from posttrain.chat.reasoning import OPEN
from posttrain.config.backend import ChatBackend
from posttrain.config.generation import TokenChoice, generation_choice
from posttrain.conversation.terminal import Terminal
from posttrain.environments.base import Toolbox
from posttrain.errors import ConfigError
from posttrain.records import Message
from posttrain.rollouts import Completion, Prompt, RolloutLimits
from posttrain.sampling.engines.chat import Kind, StreamingChatSampler
from posttrain.sampling.engines.http import Client
from posttrain.sampling.rollout import Rollout
from posttrain.sampling.sampler import Ids, Sampler, unframing

_TAIL = 16  # tokens at the end of a prompt that show whether it opens the reasoning
REASONING_COMMANDS = ("/think", "/no_think", "/reasoning")
SAMPLING = tuple(TokenChoice.model_fields)
REFUSED = "error: the user did not allow this call"  # read by the model as the result
REASONING_HELP = """\
/think, /no_think   reasoning on or off from the next question on
/reasoning          show reasoning, or fold it
"""
HELP = """\
/system TEXT        set the system message; without a text: remove it
/reset              forget the conversation
/exit               end, as Ctrl-D; Ctrl-C stops an answer"""


@dataclass
class ConfirmedTools:
    """Environment of a turn: a call runs where the user allows it; calls and results are shown."""

    tools: Toolbox
    terminal: Terminal

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run a call if the person allows it; a refusal is the result that the model reads."""
        allowed = self.terminal.ask(name)
        text = await self.tools.call(name, arguments) if allowed else REFUSED
        self.terminal.note(f"← {text}")
        return text

    def snapshot(self) -> str:
        """No state."""
        return "{}"

    async def close(self) -> None:
        """Nothing to release."""


@dataclass
class Session:
    """A conversation.

    Attributes:
        tools: tools that the model may call; None declares no tool.
        seed: seed of the first turn; each turn and step derives its own from it.
        reasons: true if the model's template knows reasoning.
        thinking: setting of the template from the next turn on.
        messages: messages so far, without the system message.
        turns: number of turns so far, with those that left no message.
    """

    sampler: Sampler
    limits: RolloutLimits
    terminal: Terminal
    tools: Toolbox | None = None
    seed: int = 0
    reasons: bool = True
    thinking: bool = True
    system: str | None = None
    messages: tuple[Message, ...] = ()
    turns: int = 0

    def talk(self, runner: asyncio.Runner) -> None:
        """Read lines until they end: one with a slash is a command, any other is for the model."""
        while True:
            try:
                line = self.terminal.read("> ")
            except KeyboardInterrupt:  # at the prompt it only discards the line
                self.terminal.note("\nCtrl-D ends")
                continue
            if line is None or line.strip() == "/exit":
                return
            if line.strip().startswith("/"):
                self.terminal.note(self._run_command(line.strip()))
            elif line.strip():
                self._answer_line(line, runner)

    def _answer_line(self, line: str, runner: asyncio.Runner) -> None:
        """Answer a line of the user, and note a turn that did not end as it should."""
        try:
            completion = runner.run(self.say(line))
            if completion.finish == "failed":
                self.terminal.note(f"[failed: {completion.error}]")
            elif completion.finish == "turn_limit":
                self.terminal.note(f"[ended after {len(completion.steps)} steps]")
        except KeyboardInterrupt:
            self.terminal.note("[stopped; the conversation goes on without this turn]")
        except ConfigError as error:
            self.terminal.note(f"[failed: {error}]")

    async def say(self, text: str) -> Completion:
        """Send the user's text, run the tools that are called, and add a good turn to the history.

        A turn that failed or was cancelled is not added, nor is one in which the model wrote a
        token that frames messages: no later prompt could hold it.
        """
        self.turns += 1
        user = Message("user", text)
        system = () if self.system is None else (Message("system", self.system),)
        messages = (*system, *self.messages, user)
        prompt = Prompt(f"turn-{self.turns}", "chat", "chat", messages, thinking=self.thinking)
        unframed = unframing(self.sampler)
        environment = None
        if self.tools is not None:
            prompt = replace(prompt, tools=self.tools.schemas(prompt))
            environment = ConfirmedTools(self.tools, self.terminal)
        limits = replace(self.limits, environment_seconds=None)  # the user may take any time
        rollout = Rollout(prompt, 0, self.seed, limits, environment, unframed)
        gate = asyncio.Semaphore(1)
        while rollout.finish is None:
            self.terminal.begin()
            [generation] = await self.sampler.sample([rollout.request()])
            rollout.receive(generation)
            if generation.step is not None:
                self.terminal.end(rollout.steps[-1])
            await rollout.go_on(gate)
        completion = rollout.completion()
        texts: list[str] = []
        for message in completion.messages:
            texts += message_texts(message)
        texts_with_frames = [text for text in texts if unframed(text) != text]
        if texts_with_frames:
            excerpt = repr(texts_with_frames[0][:100])
            error = f"a token that frames messages is in {excerpt}; the turn is left out"
            completion = replace(completion, finish="failed", error=error)
        if completion.finish != "failed":
            self.messages = (*self.messages, user, *completion.messages)
        return completion

    def _run_command(self, line: str) -> str:
        """Run a command and return the text to print."""
        name, _, argument = line.partition(" ")
        if name in REASONING_COMMANDS and not self.reasons:
            return f"{name}: the chat template of this model knows no reasoning"
        if name in ("/think", "/no_think"):
            self.thinking = name == "/think"
            return f"thinking {'on' if self.thinking else 'off'}"
        if name == "/reasoning":
            self.terminal.shows_reasoning = not self.terminal.shows_reasoning
            if not self.terminal.shows_reasoning:
                return "reasoning is folded"
            traces = [message.reasoning for message in self.messages if message.reasoning]
            last_trace = traces[-1].strip() if traces else ""
            return f"reasoning is shown\n{last_trace}".rstrip()
        if name == "/system":
            self.system = argument.strip() or None
            return "system message set" if self.system else "no system message"
        if name == "/reset":
            self.messages = ()
            return "forgotten"
        commands = REASONING_HELP + HELP if self.reasons else HELP
        if name == "/help":
            return commands
        return f"no command {name}\n{commands}"


def open_checkpoint(
    path: str, terminal: Terminal, *, chat_template: str
) -> tuple[Sampler, dict[str, Any], bool]:
    """Load a checkpoint: its sampler, its own sampling parameters, and whether it can reason.

    The parameters are those of its generation config; it can reason if its template knows how.

    Args:
        path: folder or hub id.

    Raises:
        ConfigError: something is missing or does not fit.
    """
    # imported here: a server needs neither torch nor a tokenizer
    from transformers.utils.logging import disable_progress_bar

    from posttrain.models.inference import generation_stops, load_for_inference, weights_digest
    from posttrain.sampling.engines.transformers import StreamingEngine
    from posttrain.sampling.render import RenderedSampler
    from posttrain.tokens.renderer import chat_template_of
    from posttrain.tokens.tokenizer import encoder_of, largest_id, load_any_tokenizer

    disable_progress_bar()
    tokenizer = load_any_tokenizer(path)
    template = chat_template_of(tokenizer, choice=chat_template)
    encoder = encoder_of(tokenizer)
    vocabulary = largest_id(tokenizer) + 1
    model = load_for_inference(
        path, dtype="auto", device="auto", attention="auto", vocabulary=vocabulary, simulate=True
    )

    def show(prompt: Ids, text: str) -> None:
        """Show a piece of the answer; the prompt's end tells whether the first is reasoning."""
        if not terminal.splitter.has_text:
            prompt_end = encoder.decode(prompt[-_TAIL:]).rstrip()
            terminal.splitter.begin(in_reasoning=prompt_end.endswith(OPEN))
        terminal.splitter.feed(text)

    weights = weights_digest(path)
    engine = StreamingEngine(model, weights=weights, decode=encoder.decode, show=show)
    stops = generation_stops(path, model)
    sampler = RenderedSampler(engine, template=template, encoder=encoder, stop_ids=stops)
    return sampler, generation_choice(path).chosen(), writes_reasoning(template)


def open_server(
    client: Client, backend: ChatBackend, *, sent: Collection[str], terminal: Terminal
) -> Sampler:
    """Build the sampler of a server, which shows its answers in the terminal as they come.

    Args:
        sent: names of the sampling parameters that are sent, those that the user gave; the server
            decides the others.
    """

    def show(kind: Kind, text: str) -> None:
        if kind == "answer":
            terminal.splitter.feed(text)  # a server without parsers leaves tags and calls in it
        else:
            terminal.show(kind, text)

    left_to_server = [name for name in SAMPLING if name not in sent]
    return StreamingChatSampler(client, backend, show=show, left_to_server=left_to_server)
