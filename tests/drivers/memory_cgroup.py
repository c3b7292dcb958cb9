"""A memory cgroup to run a program in: the kernel's word on how much it takes. Versions 1 and 2."""
import os
import time


class Unavailable(Exception):
    """Why there is no such cgroup to be had."""


def _own_groups():
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            yield controllers.split(",") if controllers else [], path


def _parents():
    """(version, folder) where a group may be made, the innermost first: outer limits then hold as well."""
    root = "/sys/fs/cgroup"
    for controllers, path in _own_groups():
        if "memory" in controllers:
            for folder in (root + "/memory" + path.rstrip("/"), root + "/memory"):
                if os.path.exists(folder + "/memory.limit_in_bytes"):
                    yield 1, folder
                    break
        if not controllers:
            folder = path.rstrip("/")
            while True:  # a group with processes of its own may not hand controllers on: look further out
                try:
                    with open(root + folder + "/cgroup.subtree_control") as file:
                        if "memory" in file.read().split():
                            yield 2, root + folder
                            break
                except OSError:
                    pass
                if not folder:
                    break
                folder = folder.rpartition("/")[0]


class MemoryCgroup:
    """with MemoryCgroup(bytes) as group: subprocess.Popen(..., preexec_fn=group.enter)"""

    def __init__(self, limit):
        self.path, reasons = None, []
        for version, parent in _parents():
            path = os.path.join(parent, f"k3-{os.getpid()}-{limit}")
            try:
                os.mkdir(path)
            except OSError as error:
                reasons.append(str(error))
                continue
            self.path, self.version = path, version
            try:
                if version == 1:
                    self._write("memory.limit_in_bytes", limit)
                    if os.path.exists(path + "/memory.memsw.limit_in_bytes"):
                        self._write("memory.memsw.limit_in_bytes", limit)
                else:
                    self._write("memory.max", limit)
                    if os.path.exists(path + "/memory.swap.max"):
                        self._write("memory.swap.max", 0)
                return
            except OSError as error:
                reasons.append(str(error))
                self.close()
        raise Unavailable("no memory cgroup can be made: " + ("; ".join(reasons) or "no memory controller here"))

    def _write(self, name, value):
        with open(os.path.join(self.path, name), "w") as file:
            file.write(str(value))

    def enter(self):
        """In the child, before it becomes the program."""
        self._write("cgroup.procs", os.getpid())

    def kills(self):
        """How many processes the kernel has killed in it, None if it does not say."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        with open(os.path.join(self.path, name)) as file:
            words = dict(line.split() for line in file)
        return int(words["oom_kill"]) if "oom_kill" in words else None

    def close(self):
        """Its processes have ended."""
        for attempt in range(20):  # the kernel may still be clearing up behind them
            if not self.path:
                return
            try:
                os.rmdir(self.path)
                self.path = None
            except OSError:
                if attempt == 19:
                    raise
                time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
