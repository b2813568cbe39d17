"""Talk to a checkpoint, or to any OpenAI-compatible server, in the terminal.

    posttrain chat runs/tiny/dpo --tools calculator
    posttrain chat --server http://localhost:8000/v1 --model nano --server-type vllm

/help lists the commands. Lines may also come from a pipe.
"""

import argparse
import asyncio
import sys
from typing import get_args

from posttrain.config.backend import ChatBackend, ThinkingSwitch
from posttrain.config.command import run_command
from posttrain.config.load import validate
from posttrain.config.paths import refuse_adapter, refuse_missing_checkpoint


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Talk to a checkpoint or a server.")
    parser.add_argument("checkpoint", nargs="?", metavar="DIR", help="a folder or a hub id")
    parser.add_argument("--chat-template", help="default: the tokenizer's own; a name or file")
    parser.add_argument("--server", metavar="URL", help="such as http://localhost:8000/v1")
    parser.add_argument("--model", help="the name that the server knows it by")
    parser.add_argument("--server-type", default="any", help="any, openai, vllm or sglang")
    fields = ", ".join(get_args(ThinkingSwitch))
    parser.add_argument("--thinking-field", default="fixed", help=f"of the server: {fields}")
    parser.add_argument("--api-key-env", metavar="NAME", help="environment variable with the key")
    parser.add_argument("--tools", metavar="NAMES", help="calculator,python: run if you allow it")
    parser.add_argument("--temperature", type=float, help="default: the generation config's, or 1")
    parser.add_argument("--top-p", type=float, help="default: the generation config's, or 1")
    parser.add_argument("--top-k", type=int, help="default: the generation config's, or 0 (all)")
    parser.add_argument("--max-tokens", type=int, default=1024, help="of a step; default 1024")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    options = parser.parse_args(argv)
    if bool(options.checkpoint) == bool(options.server):
        parser.error("name a checkpoint, or --server URL with --model NAME")
    if options.server and not options.model:
        parser.error("--server needs --model NAME")

    if options.checkpoint:
        refuse_missing_checkpoint(options.checkpoint, key="DIR")
        refuse_adapter(options.checkpoint)

    from posttrain.config.sample import ToolLoopSampling
    from posttrain.conversation.session import HELP, SAMPLING, Session, open_checkpoint, open_server
    from posttrain.conversation.terminal import open_terminal
    from posttrain.environments.base import open_toolkit
    from posttrain.sampling.engines.http import Client

    chosen = {name: getattr(options, name) for name in SAMPLING}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    tools = open_toolkit(options.tools.split(",")) if options.tools else None
    terminal = open_terminal()
    client = None
    reasons = True  # of a server's template nothing is known
    sampling = {"max_tokens": options.max_tokens}
    if options.server:
        fields = {
            "kind": "chat",
            "url": options.server,
            "model": options.model,
            "server": options.server_type,
            "thinking": options.thinking_field,
            "api_key_env": options.api_key_env,
        }
        backend = validate(fields, ChatBackend, where="--server")
        client = Client(backend)
        sampler = open_server(client, backend, sent=chosen, terminal=terminal)
    else:
        template = options.chat_template or "own"
        sampler, model_sampling, reasons = open_checkpoint(
            options.checkpoint, terminal, chat_template=template
        )
        sampling |= model_sampling
    limits = validate(sampling | chosen, ToolLoopSampling, where="sampling").limits()
    if sys.stdin.isatty():
        terminal.note(f"{options.checkpoint or options.model}. Ctrl-D ends.\n{HELP}")
    with asyncio.Runner() as runner:
        session = Session(sampler, limits, terminal, tools, seed=options.seed, reasons=reasons)
        try:
            session.talk(runner)
        finally:
            if client is not None:
                runner.run(client.close())


if __name__ == "__main__":
    run_command(main)
