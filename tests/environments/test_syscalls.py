"""The filter of system calls, run by an interpreter of its own: for both architectures, anywhere."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from posttrain.environments.sandbox.syscalls import call_numbers, filter_program
from posttrain.errors import ConfigError

ALLOWED, KILLED = 0x7FFF0000, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
READ = {"x86_64": 0, "aarch64": 63}
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


@pytest.fixture(params=ARCHITECTURES)
def machine(request: pytest.FixtureRequest) -> str:
    return request.param


def verdict(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """What the filter returns for a call, by the rules of classic BPF."""
    program = list(struct.iter_unpack("=HBBI", filter_program(machine)))
    values = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("=IIQ6Q", number, arch or ARCHITECTURES[machine], 0, *values)
    accumulator = place = 0
    while True:
        code, if_true, if_false, value = program[place]
        place += 1
        if code == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
        elif code == 0x06:
            return value
        else:
            holds = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }
            place += if_true if holds[code] else if_false


def refused(error: int) -> int:
    return 0x00050000 | error


def test_what_is_refused_and_what_is_not(machine: str):
    numbers = call_numbers(machine)
    special = {"clone", "clone3", "socket", "setsockopt"}
    for name in numbers.keys() - special:
        assert verdict(machine, numbers[name]) == refused(errno.EPERM), name
    assert verdict(machine, READ[machine]) == ALLOWED
    assert verdict(machine, numbers["clone3"]) == refused(errno.ENOSYS)
    free = [n for n in range(500) if n not in numbers.values()]
    assert {verdict(machine, n, 40) for n in free} == {ALLOWED}


def test_clone_makes_threads_and_processes_but_no_namespaces(machine: str):
    clone = call_numbers(machine)["clone"]
    thread = 0x3D0F00  # what the C library asks for
    for flags in (17, thread, 0x4111, 0x01200011):
        assert verdict(machine, clone, flags) == ALLOWED
    for bit in (17, 25, 26, 27, 28, 29, 30):
        assert verdict(machine, clone, 1 << bit | 17) == refused(errno.EPERM)


def test_sockets_are_unix_or_ip_and_their_buffers_keep_their_size(machine: str):
    socket, call = (call_numbers(machine)[name] for name in ("socket", "setsockopt"))
    allowed = [family for family in range(64) if verdict(machine, socket, family) == ALLOWED]
    assert allowed == [1, 2, 10]
    # the kernel takes the family as 32 bits: what stands above them changes nothing
    assert verdict(machine, socket, 40 | 1 << 32) == refused(errno.EAFNOSUPPORT)
    fixed = [name for name in range(80) if verdict(machine, call, 3, 1, name) != ALLOWED]
    assert fixed == [7, 8, 32, 33, 60]
    assert verdict(machine, call, 3, 1, 7) == refused(errno.EPERM)
    assert verdict(machine, call, 3, 6, 7) == ALLOWED  # of another level


def test_another_abi_is_killed(machine: str):
    assert verdict(machine, READ[machine], arch=0x40000003) == KILLED  # i386
    assert verdict(machine, 0x40000000 | READ[machine]) == KILLED  # x32


def test_numbers_are_the_kernel_s(machine: str):
    header = HEADERS[machine]
    if not header.is_file():
        pytest.skip(f"no {header}: the kernel's headers are not installed")
    defined = dict(re.findall(r"__NR_(\w+)\s+(\d+)", header.read_text()))
    numbers = call_numbers(machine)
    known = {name: int(defined[name]) for name in numbers if name in defined}
    assert len(known) >= len(numbers) - 3  # the newest may be newer than the headers
    assert known == {name: numbers[name] for name in known}


def test_an_unknown_machine_is_refused():
    with pytest.raises(ConfigError, match="riscv64"):
        filter_program("riscv64")
