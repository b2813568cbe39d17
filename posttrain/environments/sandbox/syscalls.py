"""The system calls a sandboxed program is refused, as a seccomp filter in classic BPF.

This takes away what namespaces leave: new namespaces (most kernel exploits start there), other
socket families than Unix and IP (vsock reaches a virtual machine's host), memory that no limit
counts, and kernel interfaces that a calculation has no use for. A refused call fails.
"""

from __future__ import annotations

import errno
import platform
import struct

from posttrain.errors import ConfigError

# name → (x86_64, aarch64)
_NUMBERS: dict[str, tuple[int, int]] = {
    # these are refused for some arguments, or for another reason
    "clone": (56, 220), "clone3": (435, 435), "socket": (41, 198), "setsockopt": (54, 208),
    # and these whatever their arguments
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    "unshare": (272, 97), "setns": (308, 268),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "vmsplice": (278, 75),
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "fanotify_init": (300, 262), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "quotactl": (179, 60), "acct": (163, 89), "syslog": (103, 116), "kexec_load": (246, 104),
    "init_module": (175, 105), "finit_module": (313, 273), "reboot": (169, 142),
    "swapon": (167, 224), "personality": (135, 92),
}  # fmt: skip
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
# socket options: SO_SNDBUF, SO_RCVBUF and what forces them; SO_ZEROCOPY, by which a socket
# keeps whole huge pages for the few bytes of them that it sends, as a pipe does by vmsplice
_BUFFER_OPTIONS = (7, 8, 32, 33, 60)
_SOL_SOCKET = 1
_ALLOWED_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
# CLONE_NEWTIME is left out: for clone() its bit belongs to the exit signal
_NEW_NAMESPACES = 0x7E020000  # NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_X32_BIT = 0x40000000

# instructions: BPF_LD | BPF_W | BPF_ABS, BPF_JMP with JEQ, JGE and JSET, BPF_RET
_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
# offsets in struct seccomp_data; of the arguments the low halves
_NR = 0
_ARCH = 4
_ARG0 = 16
_ARG1 = 24
_ARG2 = 32
# results: SECCOMP_RET_ALLOW, _KILL_PROCESS, and _ERRNO with the error in its low bits
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_ERRNO = 0x00050000


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """An instruction; `if_true` and `if_false` are how many instructions a jump skips."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def call_numbers(machine: str) -> dict[str, int]:
    """Numbers of the calls that the filter looks at, for a machine as in `filter_program`."""
    column = _ARCHITECTURES[machine][0]
    return {name: numbers[column] for name, numbers in _NUMBERS.items()}


def filter_program(machine: str | None = None) -> bytes:
    """Filter of system calls, as a BPF program.

    Args:
        machine: machine as `platform.machine()` names it; this one by default.

    Raises:
        ConfigError: an architecture whose call numbers are not known here.
    """
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise ConfigError(f"the sandbox knows x86_64 and aarch64, this machine is {machine!r}")
    numbers = call_numbers(machine)
    # conditions on arguments; each program ends in a return on every path
    argument_checks = {
        "clone": [
            _op(_LOAD, _ARG0),
            _op(_ANY_BIT, _NEW_NAMESPACES, 0, 1),
            _op(_RETURN, _ERRNO | errno.EPERM),
            _op(_RETURN, _ALLOW),
        ],
        "socket": [
            _op(_LOAD, _ARG0),
            # a jump to the last instruction
            *(
                _op(_EQUAL, family, len(_ALLOWED_FAMILIES) - k)
                for k, family in enumerate(_ALLOWED_FAMILIES)
            ),
            _op(_RETURN, _ERRNO | errno.EAFNOSUPPORT),
            _op(_RETURN, _ALLOW),
        ],
        "setsockopt": [
            _op(_LOAD, _ARG1),
            _op(_EQUAL, _SOL_SOCKET, 0, len(_BUFFER_OPTIONS) + 1),
            _op(_LOAD, _ARG2),
            *(
                _op(_EQUAL, option, len(_BUFFER_OPTIONS) - k)
                for k, option in enumerate(_BUFFER_OPTIONS)
            ),
            _op(_RETURN, _ALLOW),
            _op(_RETURN, _ERRNO | errno.EPERM),
        ],
    }
    # ENOSYS: the C library then falls back to clone, whose flags a filter can see
    argument_checks["clone3"] = [_op(_RETURN, _ERRNO | errno.ENOSYS)]
    program = [
        _op(_LOAD, _ARCH),
        _op(_EQUAL, _ARCHITECTURES[machine][1], 1, 0),
        _op(_RETURN, _KILL),  # calls of the 32-bit ABI would pass under other numbers
        _op(_LOAD, _NR),
        _op(_AT_LEAST, _X32_BIT, 0, 1),
        _op(_RETURN, _KILL),
    ]
    for name, number in numbers.items():
        refusal = argument_checks.get(name, [_op(_RETURN, _ERRNO | errno.EPERM)])
        # another call skips it
        program += [_op(_EQUAL, number, 0, len(refusal)), *refusal]
    program.append(_op(_RETURN, _ALLOW))
    return b"".join(program)
