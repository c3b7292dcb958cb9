/* A disk that misbehaves on demand: put before libc with LD_PRELOAD, it stands in for pread. It meddles only with reads
 * of whole blocks, more than one, from *.safetensors and *.bin: the windows that weights are read by. Headers and rows
 * of the embedding are read as they are. Set by the environment:
 *   FAULT        eio, short (1 byte comes), half (half of it comes), eintr; none: only delays and the log
 *   FAULT_FILE   the file's name ends in this                            [any]
 *   FAULT_BEGIN, FAULT_END   reads that touch these bytes of the file    [all]
 *   FAULT_SKIP   the first so many of those reads are left alone         [0]
 *   FAULT_EVERY  then every so-manyth is hit                             [1]
 *   FAULT_COUNT  and no more than so many                                [all]
 *   FAULT_USEC   every read takes so many microseconds longer            [0]
 *   FAULT_LOG    a line for each read that matches: offset, bytes, what was done
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_llong matches, hits;

static long long number(const char *name, long long otherwise) {
    const char *text = getenv(name);
    return text != NULL ? atoll(text) : otherwise;
}

static int ends_in(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static ssize_t real_pread(int fd, void *to, size_t bytes, off_t offset) {
    return (ssize_t)syscall(SYS_pread64, fd, to, bytes, offset);
}

static ssize_t faulty(int fd, void *to, size_t bytes, off_t offset) {
    char link[64], path[4096], line[160];
    if (bytes <= 4096 || bytes % 4096 != 0 || offset % 4096 != 0) return real_pread(fd, to, bytes, offset);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return real_pread(fd, to, bytes, offset);
    path[length] = '\0';
    if (!ends_in(path, ".safetensors") && !ends_in(path, ".bin")) return real_pread(fd, to, bytes, offset);
    const long long pause = number("FAULT_USEC", 0);
    if (pause > 0) usleep((useconds_t)pause);

    const char *what = getenv("FAULT"), *file = getenv("FAULT_FILE"), *log = getenv("FAULT_LOG");
    const long long begin = number("FAULT_BEGIN", 0), end = number("FAULT_END", 1LL << 62);
    const int match = (file == NULL || ends_in(path, file)) && (long long)offset < end &&
                      (long long)offset + (long long)bytes > begin;
    if (!match) return real_pread(fd, to, bytes, offset);
    const long long after = atomic_fetch_add(&matches, 1) - number("FAULT_SKIP", 0);
    const int hit = what != NULL && after >= 0 && after % number("FAULT_EVERY", 1) == 0 &&
                    atomic_fetch_add(&hits, 1) < number("FAULT_COUNT", 1LL << 62);
    if (log != NULL) {
        const int size = snprintf(line, sizeof line, "%lld %zu %s\n", (long long)offset, bytes, hit ? what : "-");
        const int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (out >= 0) {
            if (write(out, line, (size_t)size) != size) abort();
            close(out);
        }
    }
    if (hit && strcmp(what, "eio") == 0) return errno = EIO, -1;
    if (hit && strcmp(what, "eintr") == 0) return errno = EINTR, -1;
    const ssize_t got = real_pread(fd, to, bytes, offset);
    if (hit && got > 1 && strcmp(what, "short") == 0) return 1;
    if (hit && got > 1 && strcmp(what, "half") == 0) return got / 2;
    return got;
}

ssize_t pread(int fd, void *to, size_t bytes, off_t offset) { return faulty(fd, to, bytes, offset); }
ssize_t pread64(int fd, void *to, size_t bytes, off_t offset) { return faulty(fd, to, bytes, offset); }
