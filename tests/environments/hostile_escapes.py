"""Hostile programs, second part: the network, this machine's files and processes, the kernel."""

from __future__ import annotations

import platform

from tests.environments.hostile import dies, ends, stopped

NETWORK = {
    "TCP to this machine": ends(
        "attempt('tcp', socket.create_connection, ('127.0.0.1', canary['tcp']), 1)", control=True
    ),
    # a datagram to nobody is no error: whether one arrived is seen at the other end
    "UDP to this machine": ends("""
        def send():
          with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.connect(('127.0.0.1', canary['udp'])); s.send(b'x'); s.send(b'x')
        attempt('udp', send)
    """, control=True),
    "network outside": ends("""
        attempt('tcp', socket.create_connection, ('192.0.2.1', 80), 1)
        attempt('tcp6', socket.create_connection, ('2001:db8::1', 80), 1)
        attempt('dns', socket.getaddrinfo, 'example.com', 80)
    """),
    "abstract socket": ends("""
        def connect():
          with socket.socket(socket.AF_UNIX) as s: s.connect('\\0' + canary['abstract'])
        attempt('abstract', connect)
    """, control=True),
    "socket in the file system": ends("""
        def connect():
          with socket.socket(socket.AF_UNIX) as s: s.connect(canary['unix'])
        attempt('unix', connect)
    """, control=True),
    "other socket families": ends("""
        for family in (9, 16, 17, 38, 40):  # X.25, netlink, packet, kernel crypto, vsock
          for kind in (1, 2, 3, 5):
            attempt(f'{family}/{kind}', lambda: socket.socket(family, kind).close())
        attempt('raw', socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
    """),
    "interfaces": ends("""
        lines = Path('/proc/self/net/dev').read_text().splitlines()[2:]
        at_most('interfaces', len([l for l in lines if not l.strip().startswith('lo:')]), 0)
    """),
}  # fmt: skip

FILES = {
    "a secret file": ends("attempt('secret', Path(canary['secret']).read_text)", control=True),
    "homes and settings": ends("""
        for name in ('/root', '/home', '/var', '/sys', '/boot', '/run', '/mnt', '/opt', '/srv',
                     '/etc/passwd', '/etc/shadow', '/etc/hostname', canary['home']):
          attempt(name, os.stat, name)
        at_most('etc', len(set(os.listdir('/etc')) - {'alternatives', 'ld.so.cache'}), 0)
    """),
    "environment": ends("""
        for pid in ('self', '1', str(os.getppid())):
          def look():
            if canary['value'] not in Path(f'/proc/{pid}/environ').read_text(): raise LookupError
          attempt(pid, look)
        attempt('os.environ', lambda: os.environ[canary['variable']])
    """, control=True),
    "symbolic links": ends("""
        for k, target in enumerate(['/etc/shadow', canary['secret'], '/../../' + canary['secret']]):
          os.symlink(target, f'link{k}')
          attempt(target, Path(f'link{k}').read_text)
    """),
    "/proc/1/root": ends("""
        for pid in ('1', 'self', str(os.getppid())):
          for way in ('root', 'cwd', 'root/../..'):
            attempt(f'{pid}/{way}', Path(f'/proc/{pid}/{way}{canary["secret"]}').read_text)
    """),
    "writing elsewhere": ends("""
        for name in ('/', '/usr', '/usr/bin', '/etc', '/dev', '/proc', '/lib', '/bin', '/var',
                     str(Path(os.__file__).parent), canary['folder']):
          attempt(name, Path(name, 'planted').write_text, 'x')
        for name in ('/', '/usr', '/dev', '/etc', os.__file__):
          at_most(name + ' writable', int(not os.statvfs(name).f_flag & os.ST_RDONLY), 0)
    """),
    "overwriting a file": ends("attempt('secret', Path(canary['secret']).write_text, 'spoilt')"),
    "the interpreter": ends("""
        for name in (sys.executable, os.path.realpath(sys.executable), os.__file__, '/usr/bin/env'):
          attempt('remove', os.remove, name)
          attempt('write', lambda: open(name, 'r+b').close())
          attempt('chmod', os.chmod, name, 0o777)
          attempt('rename', os.rename, name, name + '.old')
    """),
    "hard links": ends(
        "for name in ('/usr/bin/env', os.__file__): attempt(name, os.link, name, 'link')"
    ),
    "everything removed": ends("""
        own = Path(os.__file__).parent / 'json'
        for name in (canary['folder'], '/usr/bin', '/etc', '/dev', own):
          shutil.rmtree(name, ignore_errors=True)
        at_most('env is gone', int(not os.path.exists('/usr/bin/env')), 0)
        at_most('python is gone', int(not os.path.exists(own / 'decoder.py')), 0)
    """, alone=True),
    "devices": ends("""
        for name in ('sda', 'vda', 'nvme0n1', 'mem', 'kmem', 'port', 'kmsg', 'kvm', 'fuse', 'loop0',
                     'nvidia0', 'nvidiactl', 'disk', 'mapper', 'vsock', 'net/tun'):
          attempt(name, os.stat, f'/dev/{name}')
        attempt('terminal', open, '/dev/tty')
        attempt('kcore', lambda: open('/proc/kcore', 'rb').read(1))
    """),
    "device nodes": ends("""
        import stat
        attempt('block', os.mknod, 'disk', stat.S_IFBLK | 0o666, os.makedev(8, 0))
        attempt('character', os.mknod, 'mem', stat.S_IFCHR | 0o666, os.makedev(1, 1))
    """),
    "odd names": ends("""
        for name in ('-rf', '--', '\\n', ' ', '*', '$(id)', '`id`', 'x' * 255, '\\udcff'):
          Path(name).write_text('x'); Path(name).unlink()
        attempt('nul', open, 'a\\0b')
        attempt('long', open, 'x/' * 5000)
    """),
}  # fmt: skip

PROCESSES = {
    "kill everything": ends("""
        if os.fork() == 0: time.sleep(3600)
        try: os.kill(-1, signal.SIGKILL)
        except ProcessLookupError: pass
    """, alone=True),
    "signals to the host": ends("""
        attempt('canary', os.kill, canary['pid'], 0)
        attempt('test', os.kill, canary['self'], 0)
        attempt('group', os.killpg, canary['self'], 0)
    """, control=True),
    "signals to the parent": ends("""
        for number in (9, 19, 6, 11):
          for pid in (1, os.getppid()):
            try: os.kill(pid, number)
            except PermissionError: pass
    """, alone=True),
    "processes to be seen": ends(
        "at_most('processes', len([p for p in os.listdir('/proc') if p.isdigit()]), 3)", alone=True
    ),
    "daemons": ends("""
        if os.fork() == 0:
          os.setsid()
          if os.fork() == 0:
            for fd in range(3): os.close(fd)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            time.sleep(3600)
          os._exit(0)
        os.wait()
    """, alone=True),
    "daemons that hold the output": ends("""
        if os.fork() == 0:
          os.setsid()
          time.sleep(3600)
    """, alone=True),
    "stopped process": stopped("os.kill(os.getpid(), signal.SIGSTOP)", "time"),
    "standard input": ends("at_most('input', len(sys.stdin.read()), 0)", alone=True),
    "inherited descriptors": ends("""
        def use(fd): os.fstat(fd)
        for fd in range(3, 128): attempt(fd, use, fd)
    """, alone=True),
    "crash": dies("os.abort()", 134),
    "segmentation fault": dies("ctypes.string_at(0)", 139),
}  # fmt: skip

KERNEL = {
    "settings in /proc": ends("""
        for name in ('kernel/core_pattern', 'kernel/hostname', 'kernel/sysrq', 'vm/overcommit_memory',
                     'vm/drop_caches', 'net/ipv4/ip_forward', 'user/max_user_namespaces'):
          path = Path('/proc/sys', name)
          attempt(name, path.write_text, path.read_text() if os.access(path, os.R_OK) else '1')
        attempt('sysrq', Path('/proc/sysrq-trigger').write_text, 'h')
        attempt('oom', Path('/proc/1/oom_score_adj').write_text, '-1000')
    """),
    "becoming root": ends("""
        for name in ('setuid', 'setgid'): attempt(name, getattr(os, name), 0)
        attempt('groups', os.setgroups, [0])
        status = Path('/proc/self/status').read_text()
        at_most('privileges', int(status.split('CapEff:')[1].split()[0], 16), 0)
        at_most('new privileges', 1 - int(status.split('NoNewPrivs:')[1].split()[0]), 0)
    """),
    "set-user programs": ends("""
        at_most('set-user bits count', int(not os.statvfs('/usr').f_flag & os.ST_NOSUID), 0)
        shutil.copy('/usr/bin/id', 'own'); os.chmod('own', 0o6755)
        for name in ('id', './own'):
          done = subprocess.run([name, '-u'], capture_output=True, text=True)
          at_most('root by ' + name, int(done.stdout.strip() in ('0', '')), 0)
    """),
    "namespaces": ends("""
        for name, flag in dict(user=1 << 28, mount=1 << 17, pid=1 << 29, net=1 << 30, ipc=1 << 27,
                               uts=1 << 26, cgroup=1 << 25, time=1 << 7).items():
          denied('unshare ' + name, {unshare}, flag)
          if name != 'time': denied('clone ' + name, {clone}, flag | 17, 0, 0, 0, 0)
        denied('clone3', {clone3}, 0, 0, error=errno.ENOSYS)
        denied('setns', {setns}, 0, 0)
    """),
    "namespaces of this machine": ends("""
        for name, host in canary['namespaces'].items():
          at_most(name, int(os.readlink(f'/proc/self/ns/{name}') == host), 0)
    """),
    "mounts": ends("""
        denied('tmpfs', {mount}, b'none', b'/scratch', b'tmpfs', 0, 0)
        denied('writable', {mount}, b'none', b'/usr', b'', 32 | 4096, 0)
        denied('umount', {umount2}, b'/usr', 2)
        attempt('chroot', os.chroot, '/scratch')
        denied('pivot', {pivot_root}, b'/scratch', b'/scratch')
    """),
    "other processes' memory": ends("""
        denied('ptrace', {ptrace}, 16, os.getppid(), 0, 0)
        denied('trace me', {ptrace}, 0, 0, 0, 0)
        denied('readv', {process_vm_readv}, 1, 0, 0, 0, 0, 0)
    """),
    "keys": ends("""
        denied('add_key', {add_key}, b'user', b'x', b'y', 1, -3)
        denied('keyctl', {keyctl}, 0, -3, 0)
    """),
    "kernel interfaces": ends("""
        for name, number in dict(bpf={bpf}, perf={perf_event_open}, userfaultfd={userfaultfd},
                io_uring=425, module={finit_module}, reboot={reboot}).items():
          denied(name, number, 0, 0, 0, 0, 0)
    """),
    "the clock and the name": ends("""
        attempt('clock', time.clock_settime, time.CLOCK_REALTIME, time.time())
        attempt('name', socket.sethostname, 'x')
        at_most('hostname', int(socket.gethostname() != 'sandbox'), 0)
    """),
}  # fmt: skip

if platform.machine() == "x86_64":  # the same calls under other numbers: SIGSYS
    KERNEL["calls of another ABI"] = dies("libc.syscall(0x40000000 + 39)", 159)

ESCAPES = NETWORK | FILES | PROCESSES | KERNEL
