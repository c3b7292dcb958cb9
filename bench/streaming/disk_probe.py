#!/usr/bin/env python3
"""What the disk gives: reads the shards of a checkpoint past the page cache with threads of its own, and shares no code
with the reader of k3.  preadv lets go of the interpreter's lock, so the threads read side by side."""
import mmap
import os
import random
import threading
import time

PIECE, HUGE = 1 << 20, 2 << 20


class DiskProbe:
    def __init__(self, folder, threads=24):
        self.threads, self.files, self.pieces = threads, [], []
        # Huge pages where there are any: a device takes a piece of 256 small ones in several requests.
        self.memory = mmap.mmap(-1, (threads * PIECE // HUGE + 2) * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self.memory.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                pass
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".safetensors"):
                continue
            path = os.path.join(folder, name)
            try:
                self.files.append(os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC))
            except OSError as error:
                raise OSError(f"{path} cannot be read past the page cache, nothing can be measured: {error}") from None
            whole = os.path.getsize(path) // PIECE
            self.pieces += [(self.files[-1], piece * PIECE) for piece in range(whole)]
        if not self.pieces:
            raise OSError(f"{folder} has no shards of {PIECE} bytes or more")
        self.random = random.Random(1)

    def measure(self, seconds):
        """Bytes a second while all threads read, in file order from a place of its own for each call."""
        lock, at, moved, errors = threading.Lock(), [self.random.randrange(len(self.pieces))], [], []
        end = time.monotonic() + seconds

        def work(number):
            buffer = memoryview(self.memory)[number * PIECE:(number + 1) * PIECE]
            got = 0
            try:
                while time.monotonic() < end:
                    with lock:
                        fd, offset = self.pieces[at[0]]
                        at[0] = (at[0] + 1) % len(self.pieces)
                    got += os.preadv(fd, [buffer], offset)
            except OSError as error:
                errors.append(error)
            moved.append(got)
        start = time.monotonic()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(self.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return sum(moved) / (time.monotonic() - start)

    def close(self):
        self.memory.close()
        for fd in self.files:
            os.close(fd)
