/* Faults in file calls, injected from outside: preloaded, it counts the calls that change files below
 * one folder and, at the one it was armed for, kills the process or makes the call fail.
 *
 * Python's own mocks cannot reach what NumPy, SQLite and Arrow write from C; this can.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL, ENOSPC_FOREVER, EIO_ONCE, SHORT_READ };

static int mode = COUNT;
static long armed_at = 0, seen = 0;
static char folder[PATH_MAX] = "";

/* Called through ctypes by the process under test. */
void fault_arm(int kind, long at, const char *where) {
    mode = kind; armed_at = at; seen = 0;
    snprintf(folder, sizeof folder, "%s", where);
}

long fault_seen(void) { return seen; }

static int inside(const char *path) {
    if (!folder[0] || !path) return 0;
    if (path[0] == '/') return strncmp(path, folder, strlen(folder)) == 0;
    char here[PATH_MAX];
    return getcwd(here, sizeof here) && strncmp(here, folder, strlen(folder)) == 0;
}

static int inside_fd(int fd) {
    char link[64], path[PATH_MAX];
    if (!folder[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return inside(path);
}

/* Whether this changing call must fail; errno says how. */
static int strike(void) {
    if (mode == SHORT_READ) return 0;
    long now = __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST);
    if (mode == KILL && now == armed_at) kill(getpid(), SIGKILL);
    if (mode == ENOSPC_FOREVER && now >= armed_at) { errno = ENOSPC; return 1; }
    if (mode == EIO_ONCE && now == armed_at) { errno = EIO; return 1; }
    return 0;
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *b, size_t n) {
    REAL(write);
    if (inside_fd(fd) && strike()) return -1;
    return real(fd, b, n);
}
ssize_t pwrite(int fd, const void *b, size_t n, off_t o) {
    REAL(pwrite);
    if (inside_fd(fd) && strike()) return -1;
    return real(fd, b, n, o);
}
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t o) {
    REAL(pwrite64);
    if (inside_fd(fd) && strike()) return -1;
    return real(fd, b, n, o);
}
ssize_t writev(int fd, const struct iovec *v, int c) {
    REAL(writev);
    if (inside_fd(fd) && strike()) return -1;
    return real(fd, v, c);
}
/* NumPy writes arrays through a FILE of its own, which never reaches write() above. */
size_t fwrite(const void *b, size_t size, size_t n, FILE *f) {
    REAL(fwrite);
    if (f != stderr && f != stdout && inside_fd(fileno(f)) && strike()) return 0;
    return real(b, size, n, f);
}
int fsync(int fd) {
    REAL(fsync);
    if (inside_fd(fd) && strike()) return -1;
    return real(fd);
}
int fdatasync(int fd) {
    REAL(fdatasync);
    if (inside_fd(fd) && strike()) return -1;
    return real(fd);
}
int ftruncate(int fd, off_t n) {
    REAL(ftruncate);
    if (inside_fd(fd) && strike()) return -1;
    return real(fd, n);
}
int ftruncate64(int fd, off64_t n) {
    REAL(ftruncate64);
    if (inside_fd(fd) && strike()) return -1;
    return real(fd, n);
}
int rename(const char *a, const char *b) {
    REAL(rename);
    if ((inside(a) || inside(b)) && strike()) return -1;
    return real(a, b);
}
int unlink(const char *a) {
    REAL(unlink);
    /* a full disk still lets files be removed */
    if (inside(a) && mode != ENOSPC_FOREVER && strike()) return -1;
    return real(a);
}
int mkdir(const char *a, mode_t m) {
    REAL(mkdir);
    if (inside(a) && strike()) return -1;
    return real(a, m);
}
static int creates(int flags) { return flags & (O_CREAT | O_TRUNC); }
int open(const char *path, int flags, ...) {
    REAL(open);
    mode_t m = 0;
    if (flags & O_CREAT) { va_list v; va_start(v, flags); m = va_arg(v, mode_t); va_end(v); }
    if (creates(flags) && inside(path) && strike()) return -1;
    return real(path, flags, m);
}
int open64(const char *path, int flags, ...) {
    REAL(open64);
    mode_t m = 0;
    if (flags & O_CREAT) { va_list v; va_start(v, flags); m = va_arg(v, mode_t); va_end(v); }
    if (creates(flags) && inside(path) && strike()) return -1;
    return real(path, flags, m);
}
ssize_t read(int fd, void *b, size_t n) {
    REAL(read);
    /* a reader that trusts one call to bring everything is caught by half of what it asked for */
    if (mode == SHORT_READ && n > 1 && inside_fd(fd)) {
        __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST);
        n = n / 2;
    }
    return real(fd, b, n);
}
